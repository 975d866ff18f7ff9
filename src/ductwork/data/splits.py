"""Cutting images into train and test so that the cut is a fact about the images and not about the machine."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ductwork.data.domain import IntArray
from ductwork.errors import ConfigError, DataError


def train_test_split(
    names: Sequence[str], labels: Sequence[int] | npt.NDArray[np.integer], ratio: float, seed: int
) -> tuple[IntArray, IntArray]:
    """Positions of the training and of the test images, each ascending.

    Within a class the images are ranked by a hash of (seed, name), and the first ``ratio`` of them train. So the cut
    does not depend on the order of the listing, the platform or the other classes, and an image that is added later
    moves at most one other across the cut. A class of two or more images has at least one on each side; a single image
    trains.
    """
    if not 0 < ratio < 1:
        raise ConfigError(f"the share of training images must lie between 0 and 1, not be {ratio}")
    if len(names) != len(labels):
        raise DataError(f"{len(names)} names but {len(labels)} labels")
    if len(set(names)) != len(names):
        twice = next(name for name in names if list(names).count(name) > 1)
        raise DataError(f"image {twice!r} is listed twice, so it cannot be put on one side of the split")
    ranks = np.array([_rank(name, seed) for name in names], dtype=np.uint64)
    classes = np.asarray(labels, dtype=np.int64)
    trains = np.zeros(len(names), dtype=bool)
    for label in np.unique(classes):
        members = np.flatnonzero(classes == label)
        trains[members[np.argsort(ranks[members])[: _share(len(members), ratio)]]] = True
    return np.flatnonzero(trains), np.flatnonzero(~trains)


def _rank(name: str, seed: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}\0{name}".encode(), digest_size=8).digest(), "big")


def _share(n: int, ratio: float) -> int:
    return 1 if n == 1 else min(max(int(n * ratio + 0.5), 1), n - 1)
