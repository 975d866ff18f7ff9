"""Office-Home: 65 kinds of objects in four looks (Venkateswara et al., CVPR 2017).

The download has one folder a domain and one folder a class in it, and no split. The paper's protocol cuts each domain
70:30, not class by class; which images fall on which side was never published. Here they are ranked by a hash of the
seed and their names, and the first ``int(0.7 n)`` train, which gives the test sizes of the published logs.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np

from ductwork.data.benchmarks import (
    Benchmark,
    Count,
    DomainFiles,
    files_by_class,
    image_set,
    listing,
    register_benchmark,
)
from ductwork.data.domain import Domain, Stream
from ductwork.data.splits import train_test_split
from ductwork.errors import ConfigError, DataError

_DOMAINS = ("Art", "Clipart", "Product", "Real_World")
_TRAIN_SHARE = 0.7


def _plain(name: str) -> str:
    return name.strip().replace(" ", "_").casefold()


def _on_disk(root: Path) -> dict[str, str]:
    """Domain -> its folder: archives differ in ``Real World`` and ``Real_World``."""
    known = {_plain(name): name for name in _DOMAINS}
    found: dict[str, str] = {}
    for name in listing(root)[0].values():
        domain = known.get(_plain(name))
        if domain in found:
            raise DataError(f"{root}: {name!r} and {found[domain]!r} are both the domain {domain!r}; remove one")
        if domain is not None:
            found[domain] = name
    return found


def _open(root: Path, order: tuple[str, ...], split: float | None, seed: int) -> Stream:
    share = _TRAIN_SHARE if split is None else split
    if not 0 < share < 1:
        raise ConfigError(f"the share of training images must lie between 0 and 1, not be {share}")
    places = _on_disk(root)
    return Stream(
        FACTS.name, tuple(_domain(root, name, places, share, seed) for name in order), transform="paper-jitter"
    )


def _domain(root: Path, name: str, places: dict[str, str], share: float, seed: int) -> Domain:
    if name not in places:
        raise DataError(f"{root}: the domain {name!r} is missing; expected {FACTS.layout}")
    folder = places[name]
    files = [(label, path.removeprefix(f"{folder}/")) for label, path in files_by_class(root, folder)]
    images = image_set(files, partial(DomainFiles, os.path.abspath(root / folder), domain=name))
    names = [images.name(i) for i in range(len(images))]
    # One "class" for all: the protocol cuts the domain as a whole. The share is that of int(share * n), not rounded.
    exact = int(share * len(names)) / len(names)
    if not 0 < exact < 1:
        raise DataError(f"{root / folder}: {len(names)} images are too few for a split of {share:g}")
    train, test = train_test_split(names, np.zeros(len(names), np.int64), exact, seed)
    return Domain(name, images.subset(train), images.subset(test))


FACTS = register_benchmark(
    Benchmark(
        name="office-home",
        title="Office-Home",
        about="65 everyday objects as art, clip art, product pictures and photographs; 15,588 images",
        home="https://www.hemanthdv.org/officeHomeDataset.html",
        download=(
            "Get OfficeHomeDataset_10072016.zip from the home page.",
            "Unpack it. The folder that holds Art, Clipart, Product and Real World is the root; rename nothing.",
        ),
        layout="{Art,Clipart,Product,Real World}/<class>/*.jpg",
        orders=(
            ("Art", "Clipart", "Product", "Real_World"),
            ("Clipart", "Product", "Real_World", "Art"),
            ("Product", "Clipart", "Real_World", "Art"),
            ("Real_World", "Product", "Clipart", "Art"),
            ("Art", "Real_World", "Product", "Clipart"),
        ),
        classes=65,
        expected=(
            Count("Art", "train", 1698),
            Count("Art", "test", 729),
            Count("Clipart", "train", 3055),
            Count("Clipart", "test", 1310),
            Count("Product", "train", 3107),
            Count("Product", "test", 1332),
            Count("Real_World", "train", 3049),
            Count("Real_World", "test", 1308),
        ),
        present=lambda root: bool(_on_disk(root)),
        notes=("The paper's split was never published: sizes agree with its logs, the images on each side may not.",),
    ),
    _open,
)
