"""Ridge regression against scikit-learn and NumPy, and its independence of order."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from ductwork import functional as dwf
from ductwork.errors import DuctworkError, ShapeError


def sample(seed: int, n: int = 120, m: int = 20, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    features = np.maximum(rng.normal(size=(n, m)) + np.eye(classes, m)[labels], 0)
    return torch.tensor(features), torch.tensor(labels)


def filled(features: torch.Tensor, labels: torch.Tensor, classes: int = 4) -> dwf.RidgeAccumulator:
    accumulator = dwf.RidgeAccumulator(features.shape[1], classes)
    accumulator.update(features, labels)
    return accumulator


@pytest.mark.parametrize("ridge", [1e-6, 1.0, 1e4])
def test_equals_scikit_learn(ridge: float) -> None:
    features, labels = sample(0)
    reference = Ridge(alpha=ridge, fit_intercept=False, solver="svd").fit(features, np.eye(4)[labels])
    np.testing.assert_allclose(filled(features, labels).solve(ridge), reference.coef_.T, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("ridge", [1e-8, 1e-2])
def test_equals_least_squares_with_extra_rows(ridge: float) -> None:
    features, labels = sample(1)
    a = np.vstack([features, np.sqrt(ridge) * np.eye(20)])
    b = np.vstack([np.eye(4)[labels], np.zeros((20, 4))])
    np.testing.assert_allclose(filled(features, labels).solve(ridge), np.linalg.lstsq(a, b)[0], atol=1e-10)


@pytest.mark.parametrize("batch", [1, 7, 50])
def test_batches_order_and_ranks_do_not_show(batch: int) -> None:
    features, labels = sample(2)
    whole = filled(features, labels)
    ranks = [dwf.RidgeAccumulator(20, 4) for _ in range(2)]
    for i, chunk in enumerate(torch.split(torch.randperm(120, generator=torch.Generator().manual_seed(0)), batch)):
        ranks[i % 2].update(features[chunk].float(), labels[chunk])
    ranks[0].merge(ranks[1])
    assert ranks[0].count == whole.count == 120
    single = filled(features.float(), labels)
    torch.testing.assert_close(ranks[0].gram, single.gram, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(ranks[0].solve(1.0), whole.solve(1.0), atol=1e-6, rtol=0)


def test_same_domain_twice() -> None:
    features, labels = sample(3)
    once, twice = filled(features, labels), filled(features, labels)
    twice.update(features, labels)
    torch.testing.assert_close(twice.solve(2.0), once.solve(1.0))


def test_blocks_add_up_to_the_shared_head() -> None:
    (x1, y1), (x2, y2) = sample(4), sample(5)
    shared = filled(x1, y1)
    shared.update(x2, y2)
    blocks = filled(x1, y1, classes=8)
    blocks.update(x2, y2 + 4)
    solution = blocks.solve(0.5)
    torch.testing.assert_close(solution[:, :4] + solution[:, 4:], shared.solve(0.5))


def test_grow() -> None:
    features, labels = sample(6)
    grown = filled(features, labels)
    grown.grow(6)
    grown.update(features, labels + 2)
    whole = filled(features, labels, classes=6)
    whole.update(features, labels + 2)
    assert torch.equal(grown.solve(1.0), whole.solve(1.0))
    with pytest.raises(ShapeError, match="shrink"):
        grown.grow(3)


def test_targets_may_be_values() -> None:
    features, labels = sample(7)
    by_value = dwf.RidgeAccumulator(20, 4)
    by_value.update(features, torch.nn.functional.one_hot(labels, 4))
    assert torch.equal(by_value.targets, filled(features, labels).targets)


@pytest.mark.parametrize("seed", range(3))
def test_selection_equals_seventeen_solves(seed: int) -> None:
    features, labels = sample(seed, n=60)
    accumulator = filled(features[:40], labels[:40])
    truth = np.eye(4)[labels[40:]]
    errors = [
        float(((features[40:].numpy() @ accumulator.solve(ridge).numpy() - truth) ** 2).mean())
        for ridge in dwf.RIDGE_LAMBDAS
    ]
    found = dwf.select_ridge(accumulator.gram, accumulator.targets, features[40:], labels[40:])
    np.testing.assert_allclose(found.errors, errors, rtol=1e-5)
    assert found.ridge == dwf.RIDGE_LAMBDAS[int(np.argmin(errors))]
    assert 1e-8 < found.ridge < 1e8, "the sample should make the choice a choice"


def test_selection_on_a_singular_gram() -> None:
    features, labels = sample(0, n=60, m=50)
    accumulator = filled(features[:10], labels[:10])
    found = dwf.select_ridge(accumulator.gram, accumulator.targets, features[10:], labels[10:])
    assert np.isfinite(found.errors).all()


def test_refusals() -> None:
    features, labels = sample(0, n=5)
    with pytest.raises(DuctworkError, match="singular at lambda 0"):
        filled(features, labels).solve(0.0)
    with pytest.raises(DuctworkError, match="negative"):
        filled(features, labels).solve(-1.0)
    with pytest.raises(ShapeError, match=r"\[0, 2\)"):
        filled(features, labels + 2, classes=2)
    with pytest.raises(ShapeError, match=r"features \[n, 20\]"):
        filled(features, labels).update(features[:, :3], labels)
    with pytest.raises(DuctworkError, match="positive"):
        dwf.select_ridge(torch.eye(20), torch.ones(20, 4), features, labels, [0.0])
    with pytest.raises(ShapeError, match="float64"):
        dwf.RidgeAccumulator(2, 2, dtype=torch.float16)
