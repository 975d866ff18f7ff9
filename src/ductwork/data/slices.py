"""A batch is cut into slices, one for each process of a run. What depends on the whole batch asks here for the rest.

Most code never needs to know: a loss is a mean over images, and gradients are averaged over the processes by their
shares. What looks at its neighbours in the batch (a choice by majority, statistics of a batch) would see a slice only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Slice:
    """Images ``start`` to ``start + size`` of a batch of ``total``; ``add`` sums a tensor over all slices."""

    start: int
    size: int
    total: int
    add: Callable[[Tensor], Tensor]


_now: ContextVar[Slice | None] = ContextVar("slice", default=None)


@contextmanager
def working_on(piece: Slice) -> Iterator[None]:
    """What is computed meanwhile is about one slice; all processes must do the same in the same order."""
    token = _now.set(piece)
    try:
        yield
    finally:
        _now.reset(token)


def sum_over_batch(tensor: Tensor) -> Tensor:
    """The sum of ``tensor`` over all slices of the batch that is being worked on; of one process, itself."""
    piece = _now.get()
    return tensor if piece is None else piece.add(tensor)


def bounds(total: int, rank: int, world: int) -> tuple[int, int]:
    """Start and size of a rank's slice, as ``numpy.array_split`` cuts: sizes differ by one at most."""
    size, larger = divmod(total, world)
    return rank * size + min(rank, larger), size + (rank < larger)
