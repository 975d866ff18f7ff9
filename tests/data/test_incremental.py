"""Class-incremental streams."""

from __future__ import annotations

import pytest

from ductwork.data.domain import Stream
from ductwork.data.incremental import by_classes
from ductwork.errors import ConfigError
from tests.conftest import CLASSES


def test_every_image_comes_once_and_classes_do_not_repeat(stream: Stream) -> None:
    parts = by_classes(stream, 3)
    assert parts.order == ("classes 1-3", "classes 4-4")
    assert [part.classes for part in parts] == [CLASSES[:3], CLASSES[3:]]
    names = [part.train.name(i) for part in parts for i in range(len(part.train))]
    assert sorted(names) == sorted(d.train.name(i) for d in stream for i in range(len(d.train)))
    assert len(set(names)) == len(names)
    assert sum(len(part.test) for part in parts) == sum(len(d.test) for d in stream)


def test_labels_stay_those_of_the_images(stream: Stream) -> None:
    of = {d.train.name(i): d.train.label_name(i) for d in stream for i in range(len(d.train))}
    for part in by_classes(stream, 2):
        assert all(of[part.train.name(i)] == part.train.label_name(i) for i in range(len(part.train)))


@pytest.mark.parametrize("increment", [0, -1, 4, 99])
def test_impossible_increments(stream: Stream, increment: int) -> None:
    with pytest.raises(ConfigError, match="increment must be between 1 and 3"):
        by_classes(stream, increment)


def test_stages_may_take_one_domain_each(stream: Stream) -> None:
    parts = by_classes(stream, 2, one_domain_a_stage=True)
    assert [part.classes for part in parts] == [CLASSES[:2], CLASSES[2:]]
    for part, origin in zip(parts, stream, strict=False):
        for mine, whole in ((part.train, origin.train), (part.test, origin.test)):
            expected = [(whole.name(i), whole.label_name(i)) for i in range(len(whole))]
            found = [(mine.name(i), mine.label_name(i)) for i in range(len(mine))]
            assert found == [(name, label) for name, label in expected if label in part.classes]
    with pytest.raises(ConfigError, match="4 stages of 1 classes, but 3 domains"):
        by_classes(stream, 1, one_domain_a_stage=True)
