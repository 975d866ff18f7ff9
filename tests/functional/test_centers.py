"""Class centres against NumPy in float64, and their independence of how images arrive."""

from typing import Any

import numpy as np
import pytest
import torch

from ductwork import functional as dwf
from ductwork.errors import DuctworkError, ShapeError


def sample(
    seed: int, n: int = 200, d: int = 16, classes: int = 7, offset: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(classes), rng.integers(0, classes, n - classes)])
    return torch.tensor(rng.normal(offset, 1, (n, d)), dtype=torch.float32), torch.tensor(labels)


@pytest.mark.parametrize("seed", range(3))
def test_equals_numpy(seed: int) -> None:
    features, labels = sample(seed)
    x, y = features.numpy().astype(np.float64), labels.numpy()
    reference = np.stack([x[y == c].mean(0) for c in range(7)])
    centers = dwf.class_centers(features, labels, 7)
    assert centers.dtype == torch.float32
    np.testing.assert_allclose(centers.numpy(), reference, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("batch", [1, 3, 64, 200])
def test_batches_order_and_ranks_do_not_show(batch: int) -> None:
    # A large common offset: summing in float32 would lose the difference between batch sizes.
    features, labels = sample(0, offset=1e4)
    whole = dwf.CenterAccumulator(7, 16)
    whole.update(features, labels)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(batch))
    ranks = [dwf.CenterAccumulator(7, 16) for _ in range(2)]
    for i, chunk in enumerate(torch.split(order, batch)):
        ranks[i % 2].update(features[chunk], labels[chunk])
    ranks[0].merge(ranks[1])
    torch.testing.assert_close(ranks[0].sums, whole.sums, rtol=1e-14, atol=0)
    assert torch.equal(ranks[0].counts, whole.counts)
    torch.testing.assert_close(ranks[0].centers(), whole.centers(), rtol=1e-7, atol=0)


def test_missing_classes() -> None:
    accumulator = dwf.CenterAccumulator(4, 2)
    accumulator.update(torch.ones(2, 2), torch.tensor([0, 2]))
    with pytest.raises(DuctworkError, match="class 1, 3"):
        accumulator.centers()
    assert accumulator.centers(missing="nan").isnan().all(1).tolist() == [False, True, False, True]


def test_half_precision_features_and_gradients() -> None:
    features, labels = sample(1)
    features = features.half().requires_grad_()
    centers = dwf.class_centers(features, labels, 7)
    assert centers.dtype == torch.float32
    assert not centers.requires_grad


@pytest.mark.parametrize(
    ("features", "labels", "match"),
    [
        (torch.ones(2, 3), torch.tensor([0, 1]), r"features \[n, 2\]"),
        (torch.ones(2, 2), torch.tensor([0]), r"labels \[n\]"),
        (torch.ones(2, 2), torch.tensor([0, 4]), r"\[0, 4\), got 0 to 4"),
        (torch.ones(2, 2), torch.tensor([-1, 0]), "got -1 to 0"),
        (torch.ones(2, 2), torch.tensor([0.0, 1.0]), "integers"),
    ],
)
def test_refusals(features: Any, labels: Any, match: str) -> None:
    accumulator = dwf.CenterAccumulator(4, 2)
    with pytest.raises(ShapeError, match=match):
        accumulator.update(features, labels)
    assert accumulator.counts.sum() == 0


def test_broken_features_are_named() -> None:
    with pytest.raises(DuctworkError, match="class 1 are NaN"):
        dwf.class_centers(torch.tensor([[1.0], [float("inf")]]), torch.tensor([0, 1]), 2)


@pytest.mark.parametrize("seed", range(3))
def test_similarity_equals_numpy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, 9, 12))
    reference = np.mean((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1))
    assert dwf.center_similarity(torch.tensor(a), torch.tensor(b)) == pytest.approx(reference, abs=1e-14)


def test_similarity_properties() -> None:
    a = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    assert dwf.center_similarity(a, 3 * a) == pytest.approx(1.0, abs=1e-12)
    assert dwf.center_similarity(a, -a) == pytest.approx(-1.0, abs=1e-12)
    assert dwf.center_similarity(a, a * torch.tensor([[1.0], [1], [1], [1], [0]])) == pytest.approx(0.8)
    with pytest.raises(DuctworkError, match="class 2"):
        dwf.center_similarity(a, a.index_fill(0, torch.tensor([2]), float("nan")))
    with pytest.raises(ShapeError):
        dwf.center_similarity(a, a[:4])
