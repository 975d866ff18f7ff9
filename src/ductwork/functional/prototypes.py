"""Completing prototypes that were never measured (EASE, Zhou et al., CVPR 2024, section 3.3)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ductwork.errors import DuctworkError, ShapeError

__all__ = ["complete_prototypes"]


@torch.no_grad()
def complete_prototypes(prototypes: Tensor, row_stage: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Estimate the prototypes of old rows in the subspaces that came after them.

    Stage ``t`` measures the prototypes of its rows in the subspaces ``0 .. t``; those in ``j > t`` can no longer
    be measured. Rows of stage ``j`` and later (``N``, the "new" ones) are known in both, so for the old rows ``O``

        ``P[O, j] = softmax(cos(P[O, t], P[N, t]) / temperature) P[N, j]``

    that is, an old class is described in the new subspace by the new classes that it resembled in its own.

    Args:
        prototypes: ``[R, B, d]``, row, subspace, feature. Entries ``[r, j]`` with ``j > row_stage[r]`` are not
            read and may hold anything.
        row_stage: ``[R]`` int64, the stage in ``[0, B)`` that measured each row; every stage has rows.
        temperature: 1 in EASE, which makes nearly uniform weights where there are many classes; towards 0 the
            most similar class is taken.

    Returns:
        ``[R, B, d]``, the same with these entries filled in.
    """
    if prototypes.ndim != 3 or row_stage.shape != prototypes.shape[:1]:
        raise ShapeError(
            f"expected prototypes [R, B, d] and row_stage [R], got {list(prototypes.shape)} and {list(row_stage.shape)}"
        )
    if not temperature > 0:
        raise DuctworkError(f"temperature must be positive, got {temperature}")
    stages = prototypes.shape[1]
    row_stage = row_stage.to(prototypes.device)
    present = sorted(set(row_stage.tolist()))
    if present != list(range(stages)):
        raise ShapeError(f"every stage of 0 .. {stages - 1} must have rows, got {present}")
    completed = prototypes.clone()
    for t in range(stages - 1):
        old = row_stage == t
        for j in range(t + 1, stages):
            new = row_stage >= j
            similarity = F.normalize(prototypes[old, t], dim=1) @ F.normalize(prototypes[new, t], dim=1).T
            completed[old, j] = torch.softmax(similarity / temperature, dim=1) @ prototypes[new, j]
    return completed
