"""The demo stream: the ten digits in five looks, small enough to come with the package.

Handwriting, embossed figures, coarse scans, house numbers and mosaics, 32 x 32 pixels each, stored as PNG sheets
that any image viewer shows. Sources and licences are in ``assets/digits/LICENSES.md``.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ductwork.errors import DataError, suggest

Split = Literal["train", "test"]

SHEETS: Final = Path(__file__).parent / "assets" / "digits"


def domains() -> tuple[str, ...]:
    """Names of the domains in the order in which the demo learns them."""
    return tuple(_index()["domains"])


def load(domain: str, split: Split) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images of one domain, uint8 [n, 32, 32, 3], and the digits they show, int64 [n].

    The images come in a fixed order, with the digits 0 to 9 taking turns.
    """
    index = _index()
    if domain not in index["domains"]:
        raise DataError(f"the demo stream has no domain {domain!r}{suggest(domain, index['domains'])}")
    if split not in ("train", "test"):
        raise DataError(f"the demo stream has no split {split!r}; say 'train' or 'test'")
    entry = index["domains"][domain][split]
    labels = np.array([int(digit) for digit in entry["labels"]], dtype=np.int64)
    return _tiles(SHEETS / entry["file"], index["tile"], len(labels)), labels


@lru_cache(maxsize=1)
def _index() -> dict[str, Any]:
    return cast(dict[str, Any], json.loads((SHEETS / "digits.json").read_text(encoding="utf-8")))


def _tiles(sheet: Path, side: int, count: int) -> NDArray[np.uint8]:
    """Cut a sheet into its first ``count`` tiles, row by row."""
    with Image.open(sheet) as image:
        pixels = np.asarray(image.convert("RGB"), dtype=np.uint8)
    rows, columns = pixels.shape[0] // side, pixels.shape[1] // side
    if rows * columns < count:
        raise DataError(f"{sheet} holds {rows * columns} tiles of {side} pixels, not {count}: reinstall ductwork")
    grid = pixels[: rows * side, : columns * side].reshape(rows, side, columns, side, 3)
    return np.ascontiguousarray(grid.swapaxes(1, 2).reshape(rows * columns, side, side, 3)[:count])
