"""Herding against the formula written out."""

from typing import Any

import numpy as np
import pytest
import torch

from ductwork import functional as dwf
from ductwork.errors import DuctworkError, ShapeError


def reference(features: Any, m: int) -> list[int]:
    unit = features / (np.linalg.norm(features, axis=1, keepdims=True) + 1e-8)
    mean, total = unit.mean(0), 0
    chosen: list[int] = []
    for k in range(1, m + 1):
        distance = np.linalg.norm(mean - (unit + total) / k, axis=1)
        distance[chosen] = np.inf
        chosen.append(int(distance.argmin()))
        total = total + unit[chosen[-1]]
    return chosen


@pytest.mark.parametrize("seed", range(5))
def test_equals_formula(seed: int) -> None:
    features = np.random.default_rng(seed).normal(0.3, 1, size=(40, 12))
    assert dwf.herd(torch.tensor(features), 15).tolist() == reference(features, 15)


@pytest.mark.parametrize("seed", range(3))
def test_prefix_and_no_repeats(seed: int) -> None:
    features = torch.tensor(np.random.default_rng(seed).normal(size=(30, 6)))
    everything = dwf.herd(features, 30)
    assert sorted(everything.tolist()) == list(range(30))
    for m in (0, 1, 7, 29):
        assert torch.equal(dwf.herd(features, m), everything[:m])


def test_beats_chance() -> None:
    features = torch.nn.functional.normalize(torch.tensor(np.random.default_rng(0).normal(size=(200, 16))), dim=1)
    mean = features.mean(0)
    chosen = (features[dwf.herd(features, 10)].mean(0) - mean).norm()
    first = (features[:10].mean(0) - mean).norm()
    assert chosen < 0.5 * first


def test_short_class_ties_and_scale() -> None:
    assert sorted(dwf.herd(torch.eye(3), 10).tolist()) == [0, 1, 2]
    assert dwf.herd(torch.ones(4, 2), 3).tolist() == [0, 1, 2]
    features = torch.randn(20, 5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(dwf.herd(features, 8), dwf.herd(1000 * features, 8))


def test_refusals() -> None:
    with pytest.raises(ShapeError):
        dwf.herd(torch.empty(0, 3), 1)
    with pytest.raises(ShapeError):
        dwf.herd(torch.ones(2, 3), -1)
    with pytest.raises(DuctworkError, match="NaN"):
        dwf.herd(torch.full((2, 3), float("nan")), 1)
