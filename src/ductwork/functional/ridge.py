"""Ridge regression from running sums: the classifier of RanPAC (McDonnell et al., NeurIPS 2023).

Shapes: ``n`` images, ``M`` (random-projected) features, ``C`` targets. ``G = H'H`` is ``[M, M]``, ``Q = H'Y`` is
``[M, C]`` and ``W = (G + lambda I)^-1 Q``. Sums do not know in which order they were made, so this learner does
not forget: after any stream it is the ridge regression on all of its images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ductwork.errors import DuctworkError, ShapeError

__all__ = ["RIDGE_LAMBDAS", "RidgeAccumulator", "RidgeSelection", "select_ridge"]

RIDGE_LAMBDAS: tuple[float, ...] = tuple(10.0**k for k in range(-8, 9))
"""The 17 candidates of RanPAC."""


class RidgeAccumulator:
    """``G`` and ``Q``, gathered batch by batch.

    Args:
        dim: ``M``.
        num_targets: ``C``; see :meth:`grow`.
        dtype: of the sums. float64 (800 MB for M = 10,000) makes any split and order of batches the same up to
            its rounding and keeps a small lambda meaningful; float32 halves the memory.
        device: where the sums live.

    Attributes:
        gram: ``[M, M]``.
        targets: ``[M, C]``.
        count: images seen.
    """

    def __init__(
        self,
        dim: int,
        num_targets: int,
        *,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        if dtype not in (torch.float32, torch.float64):
            raise ShapeError(f"ridge sums are kept in float32 or float64, not {dtype}")
        self.gram = torch.zeros(dim, dim, dtype=dtype, device=device)
        self.targets = torch.zeros(dim, num_targets, dtype=dtype, device=device)
        self.count = 0

    @torch.no_grad()
    def update(self, features: Tensor, targets: Tensor) -> None:
        """Add ``features [n, M]`` with ``targets``: ``[n]`` class ids, or ``[n, C]`` values."""
        dim, num_targets = self.targets.shape
        if features.ndim != 2 or features.shape[1] != dim or targets.shape[:1] != features.shape[:1]:
            raise ShapeError(
                f"expected features [n, {dim}] and n targets, got {list(features.shape)} and {list(targets.shape)}"
            )
        values = _one_hot(targets, num_targets)
        features = features.to(self.gram.device, self.gram.dtype)
        # In place: a second M x M matrix would double the memory.
        self.gram.addmm_(features.T, features)
        self.targets.addmm_(features.T, values.to(self.gram.device, self.gram.dtype))
        self.count += len(features)

    def merge(self, other: RidgeAccumulator) -> None:
        """Add what another accumulator has seen, for example on another rank."""
        if other.targets.shape != self.targets.shape:
            raise ShapeError(f"cannot merge {list(other.targets.shape)} into {list(self.targets.shape)}")
        self.gram += other.gram.to(self.gram)
        self.targets += other.targets.to(self.targets)
        self.count += other.count

    def grow(self, num_targets: int) -> None:
        """Make room for new classes, which no earlier image belongs to."""
        extra = num_targets - self.targets.shape[1]
        if extra < 0:
            raise ShapeError(f"cannot shrink {self.targets.shape[1]} targets to {num_targets}")
        self.targets = F.pad(self.targets, (0, extra))

    def solve(self, ridge: float) -> Tensor:
        """``W = (G + ridge I)^-1 Q``, ``[M, C]``; predictions are ``H W``."""
        if not ridge >= 0:
            raise DuctworkError(f"the ridge parameter must not be negative, got {ridge}")
        system = self.gram.clone()
        system.diagonal().add_(ridge)
        factor, failed = torch.linalg.cholesky_ex(system)
        if int(failed):
            raise DuctworkError(f"the ridge system of {self.count} images is singular at lambda {ridge:g}: raise it")
        return torch.cholesky_solve(self.targets, factor)


@dataclass(frozen=True)
class RidgeSelection:
    """The chosen parameter and the validation error (mean squared error) of every candidate, in their order."""

    ridge: float
    errors: tuple[float, ...]


@torch.no_grad()
def select_ridge(
    gram: Tensor,
    targets: Tensor,
    val_features: Tensor,
    val_targets: Tensor,
    lambdas: Sequence[float] = RIDGE_LAMBDAS,
) -> RidgeSelection:
    """The lambda of least validation error, from one eigendecomposition for all candidates.

    With ``G = V diag(s) V'`` every candidate is ``H W = (H V) diag(1 / (s + lambda)) (V' Q)``. All in float64.

    Args:
        gram: ``[M, M]`` of the training part.
        targets: ``[M, C]`` of the training part.
        val_features: ``[n, M]`` held out.
        val_targets: ``[n]`` class ids or ``[n, C]`` values.
        lambdas: positive candidates; the first of the best is chosen.
    """
    if gram.shape != (targets.shape[0], targets.shape[0]) or val_features.shape[1:] != gram.shape[:1]:
        raise ShapeError(
            f"expected G [M, M], Q [M, C], features [n, M], got {list(gram.shape)}, {list(targets.shape)}, "
            f"{list(val_features.shape)}"
        )
    if not lambdas or not all(ridge > 0 for ridge in lambdas):
        raise DuctworkError(f"candidates for lambda must be positive, got {list(lambdas)}")
    if not len(val_features) or val_targets.shape[:1] != val_features.shape[:1]:
        raise ShapeError(f"{len(val_features)} held-out features, but targets {list(val_targets.shape)}")
    truth = _one_hot(val_targets, targets.shape[1]).to(gram.device, torch.float64)
    values, vectors = torch.linalg.eigh(gram.double())
    # A Gram matrix has none below zero; rounding does, and would cancel a small lambda.
    values = values.clamp_min(0.0)
    left = val_features.to(gram.device, torch.float64) @ vectors
    right = vectors.T @ targets.to(gram.device, torch.float64)
    errors = tuple(
        float(F.mse_loss(left @ (right / (values + ridge)[:, None]), truth)) for ridge in map(float, lambdas)
    )
    best = min(range(len(errors)), key=errors.__getitem__)
    return RidgeSelection(float(lambdas[best]), errors)


def _one_hot(targets: Tensor, num_targets: int) -> Tensor:
    if targets.ndim == 2 and targets.shape[1] == num_targets:
        return targets
    if targets.ndim != 1 or targets.is_floating_point():
        raise ShapeError(f"targets must be [n] class ids or [n, {num_targets}] values, got {list(targets.shape)}")
    if targets.numel() and not 0 <= int(targets.min()) <= int(targets.max()) < num_targets:
        raise ShapeError(f"class ids must be in [0, {num_targets}), got {int(targets.min())} to {int(targets.max())}")
    return F.one_hot(targets.long(), num_targets)
