"""How many images a stream has of what, and a contact sheet to see them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image, ImageDraw

from ductwork.data.domain import ImageSet, Stream
from ductwork.errors import ConfigError

_TILE, _GAP, _LINE, _MARGIN = 96, 6, 16, 130


@dataclass(frozen=True)
class PartCount:
    """Images of one split of a domain; ``smallest`` and ``largest`` are counts of the classes that it has."""

    domain: str
    split: Literal["train", "test"]
    images: int
    classes: int
    smallest: int
    largest: int


@dataclass(frozen=True)
class Statistics:
    """``per_class[class][domain]`` is (training images, test images)."""

    stream: str
    parts: tuple[PartCount, ...]
    per_class: Mapping[str, Mapping[str, tuple[int, int]]]


def statistics(stream: Stream) -> Statistics:
    """Counts per domain, split and class. No image is read."""
    sets = [(name, split, images) for name, split, images in _parts(stream) if len(images)]
    rows = [_row(name, split, images) for name, split, images in sets]
    counts = [
        (name, split, dict(zip(images.classes, images.counts().tolist(), strict=True))) for name, split, images in sets
    ]
    per_class: dict[str, dict[str, tuple[int, int]]] = {}
    for label in sorted({label for _, _, images in sets for label in images.present()}):
        per_class[label] = {}
        for name, split, found in counts:
            train, test = per_class[label].get(name, (0, 0))
            n = found.get(label, 0)
            per_class[label][name] = (train + n, test) if split == "train" else (train, test + n)
    return Statistics(stream.name, tuple(rows), per_class)


def _parts(stream: Stream) -> list[tuple[str, Literal["train", "test"], ImageSet]]:
    found: list[tuple[str, Literal["train", "test"], ImageSet]] = []
    for domain in stream:
        found += [(domain.name, "train", domain.train), (domain.name, "test", domain.test)]
    return found + [(name, "test", images) for name, images in (stream.tests or {}).items()]


def _row(name: str, split: Literal["train", "test"], images: ImageSet) -> PartCount:
    counts = images.counts()
    some = counts[counts > 0]
    return PartCount(name, split, len(images), len(some), int(some.min()), int(some.max()))


def contact_sheet(stream: Stream, path: str | os.PathLike[str], *, columns: int = 12) -> Path:
    """A PNG with a row for each domain and a column for each class, spread evenly over all classes; returns its path.

    Each picture is the first of its class; a blank says that the domain has no training image of the class.
    """
    place = Path(path).expanduser()
    if place.suffix.lower() != ".png":
        raise ConfigError(f"the contact sheet {str(place)!r} must be called *.png")
    every = np.linspace(0, len(stream.classes) - 1, min(columns, len(stream.classes))).round().astype(int)
    labels = [stream.classes[i] for i in every]
    step = _TILE + _GAP
    sheet = Image.new("RGB", (_MARGIN + step * len(labels), _LINE + step * len(stream)), "white")
    draw = ImageDraw.Draw(sheet)
    for column, label in enumerate(labels):
        draw.text((_MARGIN + step * column, 2), _short(label, 16), fill="black")
    for row, domain in enumerate(stream):
        top = _LINE + step * row
        draw.text((2, top), _short(domain.name, 21), fill="black")
        for column, label in enumerate(labels):
            tile = _first(domain.train, label)
            if tile is not None:
                left = _MARGIN + step * column
                sheet.paste(tile, (left + (_TILE - tile.width) // 2, top + (_TILE - tile.height) // 2))
    try:
        sheet.save(place)
    except OSError as error:
        raise ConfigError(f"cannot write {place}: {error.strerror or error}") from None
    return place


def _first(images: ImageSet, label: str) -> Image.Image | None:
    number = images.classes.index(label) if label in images.classes else -1
    positions = np.flatnonzero(images.labels == number)
    if not len(positions):
        return None
    image = Image.fromarray(images.read(int(positions[0])).permute(1, 2, 0).numpy())
    image.thumbnail((_TILE, _TILE))
    return image


def _short(text: str, most: int) -> str:
    # The font that comes with Pillow has Latin letters only and would raise for others.
    plain = text.encode("latin-1", "replace").decode("latin-1")
    return plain if len(plain) <= most else plain[: most - 2] + ".."
