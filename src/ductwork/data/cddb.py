"""CDDB-Hard: real or generated, five sources of forgeries (Li et al., WACV 2023).

``<set>/{train,val}/{0_real,1_fake}/*``, or with a folder for each kind of content in between; ``val`` is the test part.
The other sets of the download are left alone.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np

from ductwork.data.benchmarks import Benchmark, Count, image_set, listing, refuse_split, register_benchmark
from ductwork.data.domain import Domain, Stream
from ductwork.data.images import FileSource
from ductwork.errors import DataError

_CLASSES = ("0_real", "1_fake")
_SETS = ("biggan", "gaugan", "san", "whichfaceisreal", "wild")


def _open(root: Path, order: tuple[str, ...], split: float | None, seed: int) -> Stream:
    refuse_split(FACTS, split)
    return Stream(FACTS.name, tuple(_domain(root, name) for name in order), transform="paper-jitter")


def _domain(root: Path, name: str) -> Domain:
    train, test = _files(root, f"{name}/train"), _files(root, f"{name}/val")
    images = image_set([*train, *test], partial(FileSource, os.path.abspath(root)))
    return Domain(name, images.subset(np.arange(len(train))), images.subset(np.arange(len(train), len(images))))


def _files(root: Path, part: str) -> list[tuple[str, str]]:
    """(class, path) of the images of one part, sorted by path."""
    if not (root / part).is_dir():
        raise DataError(f"{root / part}: this folder is missing; expected {FACTS.layout}")
    folders = listing(root / part)[0].values()
    inner = [f"{part}/{name}" for name in folders if name not in _CLASSES]
    places = [f"{place}/{label}" for place in (part, *inner) for label in _CLASSES if (root / place / label).is_dir()]
    found = [(os.path.basename(at), f"{at}/{name}") for at in places for name in listing(root / at)[1].values()]
    lost = sorted(set(_CLASSES) - {label for label, _ in found})
    if lost:
        raise DataError(f"{root / part}: no image of {lost[0]!r} in here; expected {FACTS.layout}")
    return sorted(found, key=lambda pair: pair[1])


def _present(root: Path) -> bool:
    return any((root / name / "train").is_dir() for name in _SETS)


FACTS = register_benchmark(
    Benchmark(
        name="cddb-hard",
        title="CDDB",
        about="real or generated images, from five sources of forgeries",
        home="https://github.com/Coral79/CDDB",
        download=(
            "Follow the link to the CDDB data set on the project page and unpack the archive.",
            "The folder that holds gaugan, biggan, wild, whichfaceisreal and san is the root; other sets may stay.",
        ),
        layout="<set>/{train,val}/{0_real,1_fake}/* or <set>/{train,val}/<folder>/{0_real,1_fake}/*",
        orders=(
            ("san", "whichfaceisreal", "biggan", "wild", "gaugan"),
            ("wild", "whichfaceisreal", "san", "gaugan", "biggan"),
            ("biggan", "gaugan", "wild", "whichfaceisreal", "san"),
            ("gaugan", "biggan", "wild", "whichfaceisreal", "san"),
            ("whichfaceisreal", "san", "gaugan", "biggan", "wild"),
        ),
        classes=2,
        expected=(
            Count("gaugan", "test", 2000),
            Count("biggan", "test", 800),
            Count("wild", "test", 2063),
            Count("whichfaceisreal", "test", 400),
            Count("san", "test", 90),
        ),
        present=_present,
        notes=("Sizes of the training parts were never published; only the test parts are compared.",),
    ),
    _open,
)
