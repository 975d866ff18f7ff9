"""Joint training: all images of all domains, one row for each class name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ductwork.data.domain import ArraySource, Domain, ImageSet, Stream
from ductwork.engine.bench import Bench
from ductwork.engine.learner import Learner
from ductwork.errors import DataError
from ductwork.methods.joint import ALL, Joint
from tests.conftest import CLASSES, domain
from tests.methods.test_exemplars import pupil


def joint(learner: Learner) -> Joint:
    assert isinstance(learner.method, Joint)
    return learner.method


def expect(monkeypatch: pytest.MonkeyPatch, remaining: int) -> None:
    """Let the engine know of ``remaining`` domains that follow."""

    class Knowing(Bench):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.remaining = remaining

    monkeypatch.setattr("ductwork.engine.learner.Bench", Knowing)


def test_trains_on_every_image_seen_with_one_row_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[ImageSet, Any]] = []
    original = Bench.augmented

    def spy(self: Bench, batch_size: int, **options: Any) -> Any:
        seen.append((options["images"], options["targets"]))
        return original(self, batch_size, **options)

    monkeypatch.setattr(Bench, "augmented", spy)
    learner = pupil("joint")
    domains = [domain("day", ["east", "north"]), domain("dusk", ["frame", "north"]), domain("night", ["east", "west"])]
    for one in domains:
        learner.learn(one)
    (block,) = learner.method.rows.blocks
    assert (block.domain, block.classes) == (ALL, ("east", "frame", "north", "west"))
    assert len(seen) == 3
    for number, (images, targets) in enumerate(seen, start=1):
        expected = [(d.train.name(i), d.train.label_name(i)) for d in domains[:number] for i in range(len(d.train))]
        rows = sorted({label for _, label in expected})
        assert [(images.name(i), rows[row]) for i, row in enumerate(targets)] == expected
    assert learner.method(torch.randn(2, 3, 32, 32)).shape == (2, 4)
    assert learner.method.price().inference_passes == 1


def test_every_stage_starts_from_the_pretrained_backbone(stream: Stream) -> None:
    learner = pupil("joint", epochs=0)
    before = {key: value.clone() for key, value in learner.method.backbone.state_dict().items()}
    learner.learn(stream[0])
    with torch.no_grad():
        for value in learner.method.backbone.parameters():
            value.add_(1.0)
    learner.learn(stream[1])
    assert all(torch.equal(value, before[key]) for key, value in learner.method.backbone.state_dict().items())


def test_rows_start_as_pooled_class_centres_in_any_order(stream: Stream) -> None:
    # classes of different sizes, so that a mean of means would be another one
    uneven = [replace(one, train=one.train.subset(range(k, 32))) for k, one in enumerate(stream)]
    rows = []
    for order in ((0, 1, 2), (2, 0, 1)):
        learner = pupil("joint", epochs=0)
        for number in order:
            learner.learn(uneven[number])
        rows.append(joint(learner).head.weight().detach())
    pooled = pupil("joint", epochs=0)
    images = ImageSet.concat([one.train for one in uneven])
    pooled.learn(Domain("pool", images, stream[0].test))
    torch.testing.assert_close(rows[0], rows[1])
    torch.testing.assert_close(rows[0], joint(pooled).head.weight().detach())
    assert joint(pooled).head.scale.item() == 16


def test_with_last_only_a_followed_stage_is_not_trained(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = pupil("joint", lr_head=0.1)
    for number in (1, 2):
        expect(monkeypatch, 3 - number)
        report = learner.learn(stream[number - 1], tests={"day": stream[0].test})
        assert report.work["train"] == 0
        assert report.evaluation is not None, "it can be used all the same"
        assert learner.method.rows.classes == CLASSES
        assert len(report.records.get("warnings", [])) == (1 if number == 1 else 0)
        assert "backbone" not in learner.method.parts(), "the pre-trained one is not kept twice"
    expect(monkeypatch, 0)
    assert learner.learn(stream[2]).work["train"] == 3 * 32
    assert "backbone" in learner.method.parts()


def test_without_last_only_every_stage_is_trained(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    expect(monkeypatch, 1)
    learner = pupil("joint", last_only=False)
    assert [learner.learn(one).work["train"] for one in stream] == [32, 64, 96]
    assert "warnings" not in learner.reports[0].records


def test_skipping_stages_changes_nothing_at_the_last(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = []
    for skip in (True, False):
        learner = pupil("joint", last_only=skip)
        expect(monkeypatch, 1)
        learner.learn(stream[0])
        expect(monkeypatch, 0)
        learner.learn(stream[1])
        weights.append(torch.cat([p.detach().flatten() for p in learner.method.parameters()]))
    assert torch.equal(*weights)


def test_random_rows(stream: Stream) -> None:
    learner = pupil("joint", epochs=0, rows_init="random")
    learner.learn(stream[0])
    rows = joint(learner).head.weight()
    assert float(rows.detach().abs().max()) <= 64**-0.5
    assert rows.shape == (4, 64)


def test_images_that_are_gone_or_changed_are_named(stream: Stream, tmp_path: Path) -> None:
    learner = pupil("joint")
    learner.learn(stream[0])
    learner.save(tmp_path / "model")
    loaded = Learner.load(tmp_path / "model", settings=learner.session.settings)
    with pytest.raises(DataError, match="'day' are not at hand"):
        loaded.learn(stream[1])
    train = stream[0].train
    assert isinstance(train.source, ArraySource)
    loaded = Learner.load(tmp_path / "model", settings=learner.session.settings)
    loaded.library["day"] = replace(train, source=ArraySource(train.source.images // 2, train.source.names))
    with pytest.raises(DataError, match="'day' have changed"):
        loaded.learn(stream[1])
    loaded = Learner.load(tmp_path / "model", settings=learner.session.settings)
    loaded.library["day"] = train
    loaded.learn(stream[1])
    assert joint(loaded).domains == [(one.name, one.train.fingerprint) for one in stream[:2]]
