"""Chance without generators: what is drawn is a function of a seed, a purpose, an epoch and a position."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ductwork.data.domain import IntArray

SeedArray = npt.NDArray[np.uint64]

ORDER, AUGMENTATION = 1, 2  # what a derived seed is for; a new use gets a new number
_WORD = (1 << 64) - 1


def derive_seeds(seed: int, epoch: int, positions: IntArray, *, purpose: int = AUGMENTATION) -> SeedArray:
    """One 64-bit seed for every position, different for every (seed, epoch, purpose, position)."""
    key = np.zeros(1, np.uint64)
    for part in (seed, purpose, epoch):
        key = _splitmix64(key ^ np.uint64(part & _WORD))
    return _splitmix64(key ^ positions.astype(np.uint64))


def uniform(seeds: SeedArray, count: int) -> npt.NDArray[np.float64]:
    """``count`` numbers in [0, 1) from every seed, ``[n, count]``: draws for transforms that work on whole batches."""
    streams = seeds[:, None] + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (_splitmix64(streams) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _splitmix64(x: SeedArray) -> SeedArray:
    """The output function of SplitMix64 (Steele, Lea and Flood, 2014): a bijection with good avalanche."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
