"""Class centres (Eq. 5) and the similarity of two embeddings (Eq. 6).

Shapes: ``n`` images, ``d`` features, ``C`` classes.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from ductwork.errors import DuctworkError, ShapeError

__all__ = ["CenterAccumulator", "center_similarity", "class_centers"]

Missing = Literal["raise", "nan"]


class CenterAccumulator:
    """Class centres of any number of images in ``C x d`` memory (Eq. 5).

    Sums are kept in float64, so neither the size nor the order of the batches shows in the result, and the
    centres of a domain can be gathered during a pass that is made anyway. Each process of a distributed run
    keeps its own: add ``sums`` and ``counts`` up over the ranks in place, or :meth:`merge` them.
    Features are averaged as they are: normalising first would give other centres than the paper's.

    Args:
        num_classes: ``C``.
        dim: ``d``.
        device: where the sums live; that of the features avoids a copy a batch.

    Attributes:
        sums: ``[C, d]`` float64.
        counts: ``[C]`` int64, images seen of each class.
    """

    def __init__(self, num_classes: int, dim: int, *, device: torch.device | str = "cpu") -> None:
        if num_classes < 1 or dim < 1:
            raise ShapeError(f"centres need at least one class and one feature, got {num_classes} x {dim}")
        self.sums = torch.zeros(num_classes, dim, dtype=torch.float64, device=device)
        self.counts = torch.zeros(num_classes, dtype=torch.int64, device=device)

    @torch.no_grad()
    def update(self, features: Tensor, labels: Tensor) -> None:
        """Add a batch: ``features [n, d]``, ``labels [n]`` integers in ``[0, C)``."""
        classes, dim = self.sums.shape
        if features.ndim != 2 or features.shape[1] != dim or labels.shape != features.shape[:1]:
            raise ShapeError(
                f"expected features [n, {dim}] and labels [n], got {list(features.shape)} and {list(labels.shape)}"
            )
        if labels.is_floating_point():
            raise ShapeError(f"labels must be integers, got {labels.dtype}")
        # On an accelerator looking at the labels would stall the queue; index_add_ checks them there itself.
        if labels.device.type == "cpu" and labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
            raise ShapeError(f"labels must be in [0, {classes}), got {int(labels.min())} to {int(labels.max())}")
        labels = labels.to(self.sums.device, torch.int64)
        self.sums.index_add_(0, labels, features.to(self.sums.device, torch.float64))
        self.counts.index_add_(0, labels, torch.ones_like(labels))

    def merge(self, other: CenterAccumulator) -> None:
        """Add what another accumulator has seen, for example on another rank."""
        if other.sums.shape != self.sums.shape:
            raise ShapeError(f"cannot merge centres {list(other.sums.shape)} into {list(self.sums.shape)}")
        self.sums += other.sums.to(self.sums.device)
        self.counts += other.counts.to(self.counts.device)

    def centers(self, *, missing: Missing = "raise") -> Tensor:
        """``[C, d]`` float32 means.

        Args:
            missing: what to do about classes without an image: "raise" an error that names them, or give
                them rows of NaN ("nan").
        """
        if missing not in ("raise", "nan"):
            raise DuctworkError(f"missing must be 'raise' or 'nan', got {missing!r}")
        empty = torch.nonzero(self.counts == 0).flatten().tolist()
        if empty and missing == "raise":
            raise DuctworkError(f"no image of class {_listed(empty)}: a class without images has no centre")
        centers = self.sums / self.counts[:, None]
        broken = torch.nonzero(~centers.isfinite().all(dim=1) & (self.counts > 0)).flatten().tolist()
        if broken:
            raise DuctworkError(f"features of class {_listed(broken)} are NaN or infinite: the centre is meaningless")
        return centers.float()


def class_centers(features: Tensor, labels: Tensor, num_classes: int, *, missing: Missing = "raise") -> Tensor:
    """Mean feature of every class (Eq. 5), when all features are at hand.

    Args:
        features: ``[n, d]``.
        labels: ``[n]`` integers in ``[0, C)``.
        num_classes: ``C``.
        missing: see :meth:`CenterAccumulator.centers`.

    Returns:
        ``[C, d]`` float32 on the device of the features.
    """
    if features.ndim != 2:
        raise ShapeError(f"features must be [n, d], got {list(features.shape)}")
    accumulator = CenterAccumulator(num_classes, features.shape[1], device=features.device)
    accumulator.update(features, labels)
    return accumulator.centers(missing=missing)


def center_similarity(before: Tensor, after: Tensor) -> float:
    """``Sim_{0,i}``, the mean cosine between a class's centres in two embeddings (Eq. 6), in float64.

    Args:
        before: ``[C, d]`` centres in the pre-trained embedding.
        after: ``[C, d]`` centres of the same images in the fine-tuned one.

    Returns:
        A number in [-1, 1]. A centre of length zero has no direction and counts as 0.
    """
    if before.ndim != 2 or before.shape != after.shape or 0 in before.shape:
        raise ShapeError(f"two sets of centres [C, d] expected, got {list(before.shape)} and {list(after.shape)}")
    before, after = before.double(), after.to(before.device, torch.float64)
    broken = torch.nonzero(~(before.isfinite() & after.isfinite()).all(dim=1)).flatten().tolist()
    if broken:
        raise DuctworkError(f"centre of class {_listed(broken)} is NaN or infinite: compare classes with images only")
    return float((F.normalize(before, dim=1) * F.normalize(after, dim=1)).sum(dim=1).mean())


def _listed(indices: list[int]) -> str:
    """At most ten of them, for an error that stays one line."""
    shown = ", ".join(map(str, indices[:10]))
    return f"{shown}, ... ({len(indices)} in all)" if len(indices) > 10 else shown
