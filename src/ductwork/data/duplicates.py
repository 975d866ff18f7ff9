"""The same picture twice: where it is in training and in test, or under two labels.

Copies are found by a digest of their pixels. Pictures that are nearly the same (compressed again, resized) are found by
a perceptual hash of 128 bits in six bands, and only pictures that share a band are compared: two hashes that differ in
up to five bits do so for certain, most of those with up to eight bits do. A band that very many pictures share (a white
margin) says nothing and is passed over. A hash is coarse: who wants to be sure reads both pictures again and asks
:func:`alike`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from ductwork.data.domain import IntArray
from ductwork.data.examine import Look

MOST_BITS = 8
MOST_GREY_LEVELS = 8.0  # mean difference of 8 x 8 thumbnails: shape alone would join a red and a blue mug
_CORRELATION = 0.97  # copies of small pictures at JPEG quality 60 stay above 0.98; 90 % of like-hashed digits are below
_SIDE = 32
_CROWD = 512
_BANDS = ((0, 0, 21), (0, 21, 21), (0, 42, 22), (1, 0, 21), (1, 21, 21), (1, 42, 22))  # word, first bit, bits


@dataclass(frozen=True)
class Repeat:
    """Images that are the same picture, by their positions."""

    positions: tuple[int, ...]
    exact: bool
    leaks: bool  # some are in training, some in test
    labels: bool  # they have more than one label


def repeats(looks: Sequence[Look], tested: Sequence[bool], labels: Sequence[str]) -> list[Repeat]:
    """All repeats that matter: across train and test, or across labels. ``tested[i]``: image i is for tests."""
    test = np.asarray(tested, dtype=bool)
    label = np.unique(np.asarray(labels, dtype=object).astype(str), return_inverse=True)[1].astype(np.int64)
    return [*_copies(looks, test, label), *_lookalikes(looks, test, label)]


def alike(first: npt.NDArray[np.uint8], second: npt.NDArray[np.uint8]) -> bool:
    """Whether two pictures ``[H, W, 3]`` of any sizes agree in detail, but for compression and size."""
    a, b = (_standardised(pixels) for pixels in (first, second))
    return float((a * b).mean()) >= _CORRELATION


def _standardised(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    small = Image.fromarray(np.ascontiguousarray(pixels)).resize((_SIDE, _SIDE), Image.Resampling.BOX)
    values = np.asarray(small, dtype=np.float64)
    centred: npt.NDArray[np.float64] = (values - values.mean()) / max(float(values.std()), 1.0)
    return centred


def _copies(looks: Sequence[Look], test: npt.NDArray[np.bool_], label: IntArray) -> Iterator[Repeat]:
    groups: dict[bytes, list[int]] = {}
    for position, look in enumerate(looks):
        if look.digest:
            groups.setdefault(look.digest, []).append(position)
    for group in groups.values():
        leaks, several = len(set(test[group].tolist())) > 1, len(set(label[group].tolist())) > 1
        if leaks or several:
            yield Repeat(tuple(group), True, leaks, several)


def _lookalikes(looks: Sequence[Look], test: npt.NDArray[np.bool_], label: IntArray) -> Iterator[Repeat]:
    at = np.array([i for i, look in enumerate(looks) if look.hash], dtype=np.int64)
    if len(at) < 2:
        return
    digests = np.unique([looks[i].digest for i in at], return_inverse=True)[1]
    words = np.frombuffer(b"".join(looks[i].hash for i in at), dtype=np.uint64).reshape(-1, 2)
    tiny = np.frombuffer(b"".join(looks[i].thumbnail for i in at), dtype=np.uint8).reshape(len(at), -1)
    best: dict[int, tuple[int, int]] = {}  # for each image that repeats another: (bits, the other)
    for a, b in _candidates(words):
        i, j = at[a], at[b]
        differ = (test[i] != test[j]) | (label[i] != label[j])
        a, b = a[differ & (digests[a] != digests[b])], b[differ & (digests[a] != digests[b])]
        bits = np.bitwise_count(words[a] ^ words[b]).sum(1)
        grey = np.abs(tiny[a].astype(np.int16) - tiny[b]).mean(1)
        for k in np.flatnonzero((bits <= MOST_BITS) & (grey <= MOST_GREY_LEVELS)):
            first, second = sorted((int(at[a[k]]), int(at[b[k]])), key=lambda n: (bool(test[n]), n))
            best[second] = min(best.get(second, (999, 0)), (int(bits[k]), first))
    for second, (_, first) in sorted(best.items()):
        yield Repeat((first, second), False, bool(test[first] != test[second]), bool(label[first] != label[second]))


def _candidates(words: npt.NDArray[np.uint64]) -> Iterator[tuple[IntArray, IntArray]]:
    """Pairs of rows that agree in a band, a band's group at a time."""
    for word, first, width in _BANDS:
        keys = (words[:, word] >> np.uint64(first)) & np.uint64((1 << width) - 1)
        order = np.argsort(keys, kind="stable")
        edges = np.flatnonzero(np.diff(keys[order])) + 1
        starts, ends = np.concatenate([[0], edges]), np.concatenate([edges, [len(order)]])
        sizes = ends - starts
        for k in np.flatnonzero((sizes > 1) & (sizes <= _CROWD)):
            group = order[starts[k] : ends[k]]
            a, b = np.triu_indices(len(group), 1)
            yield group[a], group[b]
