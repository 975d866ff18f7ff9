"""The training loop against plain PyTorch, and what it promises about rates, accumulation and resumption."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from ductwork.data.loading import Batch
from ductwork.engine.loop import EpochLog, Snapshot, rate_factor, train
from ductwork.engine.session import Session
from ductwork.engine.settings import EngineSettings
from ductwork.errors import DuctworkError
from ductwork.methods.base import Group, TrainingConfig


class Fixed:
    """Four batches, the same in every epoch."""

    def __init__(self, batch: int = 6) -> None:
        draw = torch.Generator().manual_seed(3)
        self.batches = [
            Batch(
                torch.randn(batch, 5, generator=draw),
                torch.randint(3, (batch,), generator=draw),
                torch.arange(batch),
                batch,
            )
            for _ in range(4)
        ]

    def __len__(self) -> int:
        return len(self.batches)

    def epoch(self, number: int) -> Iterator[Batch]:
        return iter(self.batches)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.3), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def fit(
    model: nn.Module,
    config: TrainingConfig,
    *,
    epochs: int = 3,
    resume: Snapshot | None = None,
    seen: Callable[[EpochLog, Snapshot], None] = lambda log, snapshot: None,
    batches: Any = None,
    freeze: bool = False,
) -> None:
    train(
        Session(EngineSettings(precision="fp32", accelerator="cpu")),
        model,
        batches or Fixed(),
        [Group("all", list(model.parameters()), config.lr_backbone)],
        config,
        loss=lambda outputs, batch: nn.functional.cross_entropy(outputs, batch.targets),
        epochs=epochs,
        seed=11,
        freeze_batch_norm=freeze,
        resume=resume,
        on_epoch=lambda log, snapshot: seen(log, snapshot()),
        on_batch=lambda mine, total: None,
    )


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [value.clone() for value in model.state_dict().values()]


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_same_as_plain_pytorch(optimizer: str) -> None:
    config = TrainingConfig(optimizer=optimizer, lr_backbone=0.05, clip_norm=0.7)
    ours, theirs = nn.Linear(5, 3), nn.Linear(5, 3)
    theirs.load_state_dict(ours.state_dict())
    fit(ours, config)
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    memory = {"momentum": 0.9} if optimizer == "sgd" else {"betas": (0.9, 0.999)}
    plain = kinds[optimizer](theirs.parameters(), lr=0.05, weight_decay=5e-4, **memory)
    for _ in range(3):
        for batch in Fixed().batches:
            plain.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(theirs(batch.inputs), batch.targets))
            nn.utils.clip_grad_norm_(theirs.parameters(), 0.7)
            plain.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_accumulation_equals_a_larger_batch() -> None:
    small, large = nn.Linear(5, 3), nn.Linear(5, 3)
    large.load_state_dict(small.state_dict())
    fixed = Fixed()
    joined = Fixed()
    joined.batches = [
        Batch(torch.cat([a.inputs, b.inputs]), torch.cat([a.targets, b.targets]), torch.arange(12), 12)
        for a, b in zip(fixed.batches[::2], fixed.batches[1::2], strict=True)
    ]
    fit(small, TrainingConfig(accumulate=2, lr_backbone=0.1), batches=fixed)
    fit(large, TrainingConfig(lr_backbone=0.1), batches=joined)
    torch.testing.assert_close(small.weight, large.weight)


def test_an_incomplete_window_is_a_mean_as_well() -> None:
    fixed = Fixed()
    fixed.batches = fixed.batches[:3]
    model, plain = nn.Linear(5, 3), nn.Linear(5, 3)
    plain.load_state_dict(model.state_dict())
    fit(model, TrainingConfig(accumulate=2, lr_backbone=0.1, momentum=0.0, weight_decay=0), batches=fixed, epochs=1)
    steps = [fixed.batches[:2], fixed.batches[2:]]
    for step in steps:
        loss = torch.stack([nn.functional.cross_entropy(plain(b.inputs), b.targets) for b in step]).mean()
        gradients = torch.autograd.grad(loss, list(plain.parameters()))
        with torch.no_grad():
            for p, g in zip(plain.parameters(), gradients, strict=True):
                p.sub_(0.1 * g)
    torch.testing.assert_close(model.weight, plain.weight)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("at", [1, 2])
def test_resumed_training_has_the_same_bits(optimizer: str, at: int) -> None:
    config = TrainingConfig(optimizer=optimizer, lr_backbone=0.05, schedule="cosine")
    whole = network()
    snapshots: dict[int, Snapshot] = {}

    def remember(log: EpochLog, snapshot: Snapshot) -> None:
        tensors = {key: value.clone() for key, value in snapshot.tensors.items()}
        snapshots[log.epoch] = Snapshot(snapshot.epoch, tensors)

    fit(whole, config, seen=remember)
    again = network()
    torch.manual_seed(999)  # what was drawn before must not matter
    fit(again, config, resume=snapshots[at])
    for a, b in zip(weights(whole), weights(again), strict=True):
        assert torch.equal(a, b)


def test_frozen_batch_norm_keeps_its_statistics_but_learns_scale() -> None:
    model = network()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    fit(model, TrainingConfig(lr_backbone=0.1), freeze=True)
    after = model.state_dict()
    assert torch.equal(before["2.running_mean"], after["2.running_mean"])
    assert not torch.equal(before["2.weight"], after["2.weight"])


def test_divergence_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(DuctworkError, match="lower lr_backbone"):
        fit(nn.Linear(5, 3), TrainingConfig(lr_backbone=1e30), epochs=5)


def test_rates() -> None:
    assert [rate_factor("step-up", e, 8) for e in range(7)] == [1 / 3] * 5 + [1.0] * 2
    assert rate_factor("cosine", 0, 10) == 1.0
    assert math.isclose(rate_factor("cosine", 5, 10), 0.5)
    assert rate_factor("constant", 9, 10) == 1.0
    assert [rate_factor("cosine-coda", 0, n) for n in (1, 2, 20)] == [1.0] * 3
    assert math.isclose(rate_factor("cosine-coda", 19, 20), math.cos(0.495 * math.pi))
