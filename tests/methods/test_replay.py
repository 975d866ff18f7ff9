"""Replay: one softmax over all rows, all of which are trained."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ductwork.data.domain import Stream
from ductwork.engine.bench import Bench
from ductwork.methods.base import TrainingConfig
from ductwork.methods.replay import Replay
from tests.conftest import domain
from tests.methods.test_exemplars import pupil


def test_old_rows_are_trained_with_the_new(stream: Stream) -> None:
    learner = pupil()
    learner.learn(stream[0])
    method = learner.method
    assert isinstance(method, Replay)
    before = [block.detach().clone() for block in [*method.head.blocks, *method.head.biases]]
    learner.learn(stream[1])
    rows, biases = method.head.blocks, method.head.biases
    assert not torch.equal(before[0], rows[0])
    assert not torch.equal(before[1], biases[0])


@pytest.mark.parametrize(("later", "expected"), [(2e-4, [5e-4, 2e-4]), (None, [5e-4, 5e-4])])
@pytest.mark.parametrize("name", ["replay", "icarl", "memo"])
def test_weight_decay_of_later_domains(
    name: str, later: float | None, expected: list[float], stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    original = Bench.train

    def spy(self: Bench, model: Any, batches: Any, groups: Any, config: TrainingConfig, **options: Any) -> None:
        found.append(config.weight_decay)
        original(self, model, batches, groups, config, **options)

    monkeypatch.setattr(Bench, "train", spy)
    learner = pupil(name, weight_decay_later=later, epochs=0)
    learner.learn(stream[0])
    learner.learn(stream[1])
    assert found == expected


def test_the_price_is_one_backbone_and_one_row_a_pair(stream: Stream) -> None:
    learner = pupil()
    learner.learn(stream[0])
    learner.learn(domain("dusk", ["east", "frame"]))
    method = learner.method
    backbone = sum(p.numel() for p in method.backbone.parameters())
    price = method.price()
    assert price.parameters == price.trainable_parameters == backbone + 6 * (64 + 1)
    assert price.inference_passes == 1
    assert set(method.parts()) == {"backbone", "head"}
