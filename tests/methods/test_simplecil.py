"""SimpleCIL: plain class means of the frozen backbone, which nothing about the training of a stream can change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor

from ductwork.data.domain import Domain, Stream
from ductwork.data.loading import Loader
from ductwork.data.transforms import test_transform as plain_view
from ductwork.engine.learner import Learner
from ductwork.engine.settings import EngineSettings
from ductwork.methods.simplecil import SimpleCIL
from tests.conftest import CLASSES, domain, tiny_backbone


def taught(domains: Iterable[Domain], batch: int = 64) -> Learner:
    settings = EngineSettings(precision="fp32", workers=0, eval_batch_size=batch)
    pupil = Learner("simplecil", backbone=tiny_backbone(), settings=settings)
    for one in domains:
        pupil.learn(one)
    return pupil


def rows(pupil: Learner) -> dict[tuple[str, str], Tensor]:
    """The learned row of each (domain, class) pair."""
    owners = [(block.domain, name) for block in pupil.method.rows.blocks for name in block.classes]
    return dict(zip(owners, cast(SimpleCIL, pupil.method).head.weight(), strict=True))


def shuffled(one: Domain) -> Domain:
    order = np.random.default_rng(3).permutation(len(one.train))
    return replace(one, train=one.train.subset(order))


def test_rows_are_plain_means_of_raw_features(stream: Stream) -> None:
    pupil = taught(stream[:1])
    loader = Loader(stream[0].train, plain_view(pupil.transform), batch_size=64, targets=stream[0].targets, workers=0)
    (batch,) = loader.epoch()
    with torch.no_grad():
        features = pupil.method.backbone(batch.inputs)
    for label, name in enumerate(CLASSES):
        torch.testing.assert_close(rows(pupil)["day", name], features[batch.targets == label].mean(0))
    lengths = torch.stack(list(rows(pupil).values())).norm(dim=1)
    assert (lengths - 1).abs().min() > 0.1, "neither features nor means are normalised"


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_the_order_of_domains_changes_nothing(stream: Stream, order: Sequence[int]) -> None:
    first, other = taught(stream), taught([stream[i] for i in order])
    assert all(torch.equal(row, rows(other)[pair]) for pair, row in rows(first).items())
    assert first.evaluate(stream).accuracy == {name: other.evaluate(stream).accuracy[name] for name in stream.order}


def test_batches_and_the_order_of_images_change_nothing(stream: Stream) -> None:
    expected = rows(taught(stream))
    for batch, domains in ((5, list(stream)), (64, [shuffled(one) for one in stream])):
        for pair, row in rows(taught(domains, batch)).items():
            torch.testing.assert_close(row, expected[pair], rtol=0, atol=1e-6)


def test_a_class_that_a_domain_lacks_has_no_row() -> None:
    pupil = taught([domain("day"), domain("night", ["north", "west"])])
    assert ("night", "south") not in rows(pupil)
    assert all(bool(row.isfinite().all()) for row in rows(pupil).values())
    assert len(pupil.method.rows.classes) == 4


def test_any_backbone_will_do(stream: Stream) -> None:
    settings = EngineSettings(precision="fp32", workers=0)
    pupil = Learner("simplecil", backbone=tiny_backbone("test_resnet"), settings=settings)
    pupil.learn(stream[0])
    assert pupil.evaluate(stream[0]).A_b > 25
