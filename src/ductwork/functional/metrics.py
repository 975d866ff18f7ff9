"""What an accuracy matrix says: how much was learned, and how much forgotten (Eq. 1 on test sets).

``a`` is ``[B, N]``: ``a[i, j]`` is the accuracy in percent on test domain ``j`` after stage ``i``, NaN where it was not
measured. Indices count from 0 here; ``B - 1`` is the last stage. ``l(j)``, the stage at which domain ``j`` is learned,
is the first row in which it was measured unless ``learned_at`` says otherwise. That is right for streams in which
a stage is evaluated on the domains seen so far, and for streams such as CORe50 whose fixed test domains are none
of the training domains: they are all "learned" in the first stage, and what comes later is compared with that.
Give ``learned_at`` when future domains were measured as well.

Let ``S`` be the domains learned before the last stage, ``l(j) < B - 1``:

* ``A_b``: accuracy over all test images of the domains with ``l(j) <= b``: ``sum_j n_j a[b, j] / sum_j n_j``
* ``A_bar``: mean of ``A_b`` over ``b``; ``A_B``: the last
* ``forgetting``: mean over ``S`` of ``max_{l(j) <= i <= B-1} a[i, j] - a[B-1, j]``; never negative
* ``forgetting_chaudhry``: the same with ``i < B - 1`` (Chaudhry et al., ECCV 2018); negative where the last stage
  is the best
* ``bwt``, backward transfer: mean over ``S`` of ``a[B-1, j] - a[l(j), j]`` (Lopez-Paz and Ranzato, NeurIPS 2017)
* ``fwt``, forward transfer: mean over ``l(j) > 0`` of ``a[l(j)-1, j] - baseline_j``, where the baseline is the accuracy
  before any learning (same paper)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ductwork.errors import DuctworkError, ShapeError

__all__ = [
    "AccuracySummary",
    "accuracy_matrix",
    "average_accuracy_at",
    "backward_transfer",
    "forgetting",
    "forgetting_chaudhry",
    "forward_transfer",
    "summary",
]

Matrix = NDArray[np.float64]
LearnedAt = Sequence[int] | None


@dataclass(frozen=True)
class AccuracySummary:
    """All numbers in percent or percent points, unrounded; the formulas are at the top of the module."""

    A: list[float]
    A_bar: float
    A_B: float
    forgetting: float
    forgetting_chaudhry: float
    bwt: float
    fwt: float | None


def accuracy_matrix(rows: Sequence[Mapping[str, float]], names: Sequence[str]) -> Matrix:
    """``[B, N]`` from one mapping a stage, test domain to accuracy; NaN where a stage did not measure one."""
    if len(set(names)) != len(names):
        raise ShapeError(f"names of test domains repeat: {', '.join(names)}")
    unknown = sorted({name for row in rows for name in row} - set(names))
    if unknown:
        raise ShapeError(f"accuracy of {', '.join(unknown)}, which is none of {', '.join(names)}")
    values = [[float(row.get(name, np.nan)) for name in names] for row in rows]
    return np.array(values, dtype=np.float64).reshape(len(rows), len(names))


def average_accuracy_at(matrix: ArrayLike, row: int, n_test: Sequence[int], *, learned_at: LearnedAt = None) -> float:
    """``A_b`` after stage ``row``: every test image of the domains learned so far counts the same.

    Args:
        matrix: ``a``, ``[B, N]``.
        row: the stage, from 0; negative from the end.
        n_test: ``[N]`` images in each test domain.
        learned_at: ``[N]``, see the top of the module.
    """
    a, learned = _checked(matrix, learned_at)
    sizes = np.asarray(n_test, dtype=np.float64)
    if sizes.shape != a.shape[1:] or not (sizes > 0).all():
        raise ShapeError(f"n_test must be {a.shape[1]} positive sizes, got {list(n_test)}")
    stage = range(len(a))[row]
    seen = (learned <= stage) & ~np.isnan(a[stage])
    if not seen.any():
        raise DuctworkError(f"stage {stage + 1} has no accuracy on any domain learned so far")
    return float(np.average(a[stage, seen], weights=sizes[seen]))


def forgetting(matrix: ArrayLike, *, learned_at: LearnedAt = None) -> float:
    """Mean drop from the best accuracy ever, the last stage included, so at least 0."""
    a, learned = _checked(matrix, learned_at)
    drops = [np.nanmax(a[learned[j] :, j]) - a[-1, j] for j in _learned_before_last(a, learned)]
    return _mean(drops)


def forgetting_chaudhry(matrix: ArrayLike, *, learned_at: LearnedAt = None) -> float:
    """Mean drop from the best accuracy before the last stage; negative where the last stage improves on it."""
    a, learned = _checked(matrix, learned_at)
    drops = [np.nanmax(a[learned[j] : -1, j]) - a[-1, j] for j in _learned_before_last(a, learned)]
    return _mean(drops)


def backward_transfer(matrix: ArrayLike, *, learned_at: LearnedAt = None) -> float:
    """Mean change since a domain was learned; negative when later stages do harm."""
    a, learned = _checked(matrix, learned_at)
    return _mean([a[-1, j] - a[learned[j], j] for j in _learned_before_last(a, learned)])


def forward_transfer(
    matrix: ArrayLike, baseline: Sequence[float] | None, *, learned_at: LearnedAt = None
) -> float | None:
    """Mean gain on a domain right before it is learned, over a model that has learned nothing.

    Returns:
        None if it was not measured (no baseline, or nothing above the diagonal); 0 for a single stage.
    """
    a, learned = _checked(matrix, learned_at)
    if len(a) == 1:
        return 0.0
    if baseline is None:
        return None
    if len(baseline) != a.shape[1]:
        raise ShapeError(f"{len(baseline)} baselines for {a.shape[1]} test domains")
    later = [j for j, stage in enumerate(learned.tolist()) if 0 < stage < len(a)]
    gains = [float(a[learned[j] - 1, j]) - baseline[j] for j in later]
    return _mean(gains) if gains and not np.isnan(gains).any() else None


def summary(
    matrix: ArrayLike,
    n_test: Sequence[int],
    *,
    baseline: Sequence[float] | None = None,
    learned_at: LearnedAt = None,
) -> AccuracySummary:
    """Everything at once; with a single stage nothing can be forgotten or transferred, and all that is 0.

    Args:
        matrix: ``a``, ``[B, N]``.
        n_test: ``[N]`` images in each test domain.
        baseline: ``[N]`` accuracies before any learning, for forward transfer.
        learned_at: ``[N]``, see the top of the module.
    """
    a, _ = _checked(matrix, learned_at)
    averages = [average_accuracy_at(a, stage, n_test, learned_at=learned_at) for stage in range(len(a))]
    return AccuracySummary(
        A=averages,
        A_bar=_mean(averages),
        A_B=averages[-1],
        forgetting=forgetting(a, learned_at=learned_at),
        forgetting_chaudhry=forgetting_chaudhry(a, learned_at=learned_at),
        bwt=backward_transfer(a, learned_at=learned_at),
        fwt=forward_transfer(a, baseline, learned_at=learned_at),
    )


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else 0.0


def _checked(matrix: ArrayLike, learned_at: LearnedAt) -> tuple[Matrix, NDArray[np.int64]]:
    """The matrix, and the stage at which each domain is learned (``B`` if that is still to come)."""
    a = np.asarray(matrix, dtype=np.float64)
    if a.ndim != 2 or 0 in a.shape:
        raise ShapeError(f"an accuracy matrix is [stages, test domains], got {list(a.shape)}")
    with np.errstate(invalid="ignore"):
        if ((a < 0) | (a > 100 + 1e-9)).any():
            raise DuctworkError("accuracies are percentages, between 0 and 100")
    measured = ~np.isnan(a)
    first = np.where(measured.any(axis=0), measured.argmax(axis=0), len(a))
    if learned_at is None:
        return a, first
    learned = np.asarray(learned_at, dtype=np.int64)
    if learned.shape != a.shape[1:] or (learned < 0).any():
        raise ShapeError(f"learned_at must be {a.shape[1]} stages counted from 0, got {list(learned_at)}")
    return a, np.minimum(learned, len(a))


def _learned_before_last(a: Matrix, learned: NDArray[np.int64]) -> list[int]:
    """``S``, after checking that what is to be compared was measured."""
    last = len(a) - 1
    chosen = [int(j) for j in np.flatnonzero(learned < last)]
    for j in chosen:
        if np.isnan(a[last, j]) or np.isnan(a[learned[j], j]):
            stage = last if np.isnan(a[last, j]) else int(learned[j])
            raise DuctworkError(f"test domain {j + 1} was not measured after stage {stage + 1}, which transfer needs")
    return chosen
