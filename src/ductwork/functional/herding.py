"""Herding: which images stand for a class best (iCaRL, Rebuffi et al., CVPR 2017, algorithm 4)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ductwork.errors import DuctworkError, ShapeError

__all__ = ["herd"]


@torch.no_grad()
def herd(features: Tensor, m: int) -> Tensor:
    """Choose ``m`` images whose mean feature stays as close as possible to that of the class.

    With features at length 1, ``mu`` their mean and ``S`` the sum of those chosen so far, the k-th choice is
    ``argmin_i |mu - (f_i + S) / k|`` among the images left; of equals, the first. The choice is greedy, so
    ``herd(f, m)`` is the beginning of ``herd(f, M)`` for ``m <= M``, and shrinking a memory is cutting a list.

    Args:
        features: ``[n, d]`` of one class, not normalised.
        m: how many to choose; all ``n``, in their order of choice, if the class has fewer.

    Returns:
        ``[min(m, n)]`` int64 indices into ``features``, none repeated.
    """
    if features.ndim != 2 or features.shape[0] == 0:
        raise ShapeError(f"features must be [n, d] with n > 0, got {list(features.shape)}")
    if m < 0:
        raise ShapeError(f"cannot choose {m} images")
    if not bool(features.isfinite().all()):
        raise DuctworkError("features are NaN or infinite: there is nothing to herd by")
    unit = F.normalize(features.double(), dim=1, eps=1e-8)
    mean = unit.mean(dim=0)
    # |k mu - S - f|^2 = |k mu - S|^2 - 2 f (k mu - S) + |f|^2, of which the first term is the same for all.
    lengths = unit.square().sum(dim=1)
    total = torch.zeros_like(mean)
    taken = torch.zeros(len(unit), dtype=torch.bool, device=unit.device)
    chosen = []
    for k in range(1, min(m, len(unit)) + 1):
        distance = lengths - 2.0 * (unit @ (k * mean - total))
        best = distance.masked_fill(taken, float("inf")).argmin()
        chosen.append(best)
        taken[best] = True
        total = total + unit[best]
    return torch.stack(chosen) if chosen else torch.empty(0, dtype=torch.int64, device=unit.device)
