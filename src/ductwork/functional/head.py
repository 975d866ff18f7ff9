"""The classifier: cosine scores, the fold from rows to classes, and the loss of one block (Eq. 2 and Eq. 8).

Shapes: ``n`` images, ``d`` features, ``R`` rows of the classifier (one for each domain and class), ``C`` classes.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ductwork.errors import ShapeError

__all__ = ["block_cross_entropy", "cosine_logits", "fold"]


def cosine_logits(features: Tensor, weight: Tensor, scale: Tensor | float = 1.0) -> Tensor:
    """``scale * cos(phi(x), w_j)``, the cosine classifier ``W' phi(x)`` of Eq. 2 and Eq. 8.

    As ``F.linear(F.normalize(features), F.normalize(weight))``, with two differences. ``F.normalize`` divides by
    ``max(length, 1e-12)``, so rows that decayed below that would lose their scores without a word; here a row
    counts by its direction at any length a float can hold (a row of zeros has none and scores 0). And the
    product is computed in float32 or better even under autocast: bfloat16 knows cosines to two digits.

    Args:
        features: ``[n, d]``.
        weight: ``[R, d]``.
        scale: the temperature sigma, a number or a tensor that broadcasts to ``[n, R]``.

    Returns:
        ``[n, R]``, differentiable in everything.
    """
    if features.ndim != 2 or weight.ndim != 2 or features.shape[1] != weight.shape[1]:
        raise ShapeError(
            f"expected features [n, d] and weight [R, d], got {list(features.shape)} and {list(weight.shape)}"
        )
    with torch.autocast(features.device.type, enabled=False):
        return scale * F.linear(_directions(features), _directions(weight))


def _directions(rows: Tensor) -> Tensor:
    """Rows at length 1. Dividing by the largest entry first keeps tiny and huge rows away from the limits."""
    rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
    # A direction does not depend on a factor, so the factor needs no gradient.
    largest = rows.detach().abs().amax(dim=1, keepdim=True)
    return F.normalize(rows / torch.where(largest > 0, largest, torch.ones_like(largest)), dim=1)


def fold(scores: Tensor, row_class: Tensor, num_classes: int, fill: float = float("-inf")) -> Tensor:
    """Class scores from row scores: a class gets the best score of its rows.

    This is the paper's ``argmax_i(w_i' phi(x)) mod |Y|`` (end of section 3.1) said in class ids. Where domain
    ``b`` added the rows ``b |Y| ... b |Y| + |Y| - 1``, ``argmax(fold(z)) == argmax(z) mod |Y|``; but domains may
    also lack classes or bring new ones, and class-incremental learning needs nothing else.
    Should the best scores of two classes be equal, the smaller class id comes first.

    Args:
        scores: ``[n, R]``.
        row_class: ``[R]`` int64, the class of each row, in ``[0, C)``.
        num_classes: ``C``.
        fill: the score of classes without a row.

    Returns:
        ``[n, C]`` in the type of ``scores``.
    """
    if scores.ndim != 2 or row_class.shape != scores.shape[1:]:
        raise ShapeError(
            f"expected scores [n, R] and row_class [R], got {list(scores.shape)} and {list(row_class.shape)}"
        )
    # On an accelerator looking at the ids would stall the queue; scatter checks them there itself.
    if row_class.device.type == "cpu" and len(row_class):
        low, high = int(row_class.min()), int(row_class.max())
        if low < 0 or high >= num_classes:
            raise ShapeError(f"row classes must be in [0, {num_classes}), got {low} to {high}")
    folded = scores.new_full((scores.shape[0], num_classes), fill)
    index = row_class.to(scores.device).expand_as(scores)
    return folded.scatter_reduce(1, index, scores, reduce="amax", include_self=False)


def block_cross_entropy(logits: Tensor, targets: Tensor, block: slice, *, label_smoothing: float = 0.0) -> Tensor:
    """Cross-entropy over the rows of one block, the loss of Eq. 2 and (on frozen features) of Eq. 8.

    The same value and gradient as setting all other columns to ``-inf``, without touching them: rows of other
    domains get a gradient of exactly zero.

    Args:
        logits: ``[n, R]``.
        targets: ``[n]`` int64, the row *within* the block, in ``[0, block.stop - block.start)``.
        block: the rows of the domain that is being learned.
        label_smoothing: as in ``F.cross_entropy``.

    Returns:
        The mean over the batch.
    """
    if logits.ndim != 2 or targets.shape != logits.shape[:1]:
        raise ShapeError(f"expected logits [n, R] and targets [n], got {list(logits.shape)} and {list(targets.shape)}")
    start, stop, step = block.indices(logits.shape[1])
    # Python would quietly cut a slice that reaches past the end.
    if step != 1 or stop <= start or (block.stop is not None and block.stop != stop):
        raise ShapeError(f"block {block.start}:{block.stop} does not lie in the {logits.shape[1]} rows of the logits")
    return F.cross_entropy(logits[:, start:stop].float(), targets, label_smoothing=label_smoothing)
