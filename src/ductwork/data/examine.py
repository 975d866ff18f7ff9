"""A close look at single images: whether and how they are read, and by what they can be recognised again.

Nothing here stops at the first fault: what is wrong with an image is part of the answer.
"""

from __future__ import annotations

import hashlib
import io
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from ductwork.data import workers as processes
from ductwork.data.images import EMPTY, decode_image, read_image
from ductwork.errors import DataError

#: Images that are read although they are not plain RGB or grey, and what becomes of them.
TRAITS: Final = {
    "animated": "several frames or pages: the first one is read, the others are not",
    "cmyk": "CMYK, as for print: converted to RGB without its colour profile",
    "16-bit": "16 bits a channel: scaled to 8",
    "palette": "colours from a palette: converted to RGB, transparent ones laid on white",
}
_CHUNK = 64
_IN_PROCESS = 512  # fewer images than this are read sooner than other processes have started
_FLAT = 4.0  # standard deviation in grey levels below which a picture has nothing to be recognised by


class Look(NamedTuple):
    """What was found out about one image. Where ``fault`` is set, the image could not be read."""

    fault: str = ""  # empty, truncated, unreadable, bomb
    message: str = ""
    traits: tuple[str, ...] = ()
    digest: bytes = b""  # of the decoded pixels
    hash: bytes = b""  # perceptual, 128 bits; empty for flat pictures
    thumbnail: bytes = b""  # 8 x 8 RGB


def look_at_files(paths: Sequence[str], workers: int | None = None) -> Iterator[Look]:
    """One look for each file, in order. ``workers`` processes share the work; all processors unless given."""
    workers = workers or _processors()
    if workers <= 1 or len(paths) < _IN_PROCESS:
        yield from map(look_at_file, paths)
        return
    chunks = range(0, len(paths), _CHUNK)
    for looks in processes.results(processes.pool(_Looks(paths), chunks, workers), workers):
        yield from looks


@dataclass(frozen=True)
class _Looks(Dataset[list[Look]]):
    """What a process does that shares the work: the images from one place in the list on."""

    paths: Sequence[str]

    def __getitem__(self, start: int) -> list[Look]:
        return [look_at_file(path) for path in self.paths[start : start + _CHUNK]]


def _processors() -> int:
    """Those that this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def look_at_file(path: str) -> Look:
    """Everything about one image file."""
    try:
        empty = os.path.getsize(path) == 0
    except OSError:
        empty = False  # reading it says what is wrong
    return Look("empty", EMPTY) if empty else _look(path, path, lambda: read_image(path))


def look_at_content(content: bytes, name: str) -> Look:
    """Everything about an image that lies in an archive."""
    return _look(io.BytesIO(content), name, lambda: decode_image(content, name)) if content else Look("empty", EMPTY)


def _look(file: str | io.BytesIO, name: str, read: Callable[[], Tensor]) -> Look:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of what is reported here
        try:
            traits, pixels = _traits(file)
        except Exception:  # reading it says it better
            traits, pixels = (), 0
        if pixels > (Image.MAX_IMAGE_PIXELS or pixels):
            size = f"{pixels / 1e6:,.0f} million pixels take {3 * pixels / 1e9:.1f} GB; make it smaller or remove it"
            return Look("bomb", size, traits)
        try:
            tensor = read()
        except DataError as error:
            message = str(error).removeprefix(f"{name}: ")
            return Look(_kind(message), message, traits)
    return look_at_pixels(tensor.permute(1, 2, 0).numpy(), traits)


def look_at_pixels(pixels: npt.NDArray[np.uint8], traits: tuple[str, ...] = ()) -> Look:
    """What decoded pixels ``[H, W, 3]`` can be recognised by."""
    pixels = np.ascontiguousarray(pixels)
    digest = hashlib.blake2b(f"{pixels.shape}".encode(), digest_size=16)
    digest.update(pixels.data)
    image = Image.fromarray(pixels)
    tiny = image.resize((8, 8), Image.Resampling.BOX)
    return Look("", "", traits, digest.digest(), _difference_hash(image), np.asarray(tiny).tobytes())


def _difference_hash(image: Image.Image) -> bytes:
    """Where a coarse picture gets brighter to the right and downwards: 2 x 64 bits."""
    coarse = np.asarray(image.convert("L").resize((9, 9), Image.Resampling.BOX), dtype=np.int16)
    if coarse.std() < _FLAT:
        return b""
    right, down = coarse[:8, 1:] > coarse[:8, :-1], coarse[1:, :8] > coarse[:-1, :8]
    return np.packbits(np.stack([right, down])).tobytes()


def _traits(file: str | io.BytesIO) -> tuple[tuple[str, ...], int]:
    """Traits and the number of pixels, from the header alone."""
    with Image.open(file) as image:
        found = {
            "animated": bool(getattr(image, "is_animated", False)),
            "cmyk": image.mode == "CMYK",
            # 16-bit colour has mode RGB: only the decoder's raw mode tells
            "16-bit": image.mode.startswith("I;16") or ";16" in str(image.tile),
            "palette": image.mode in ("P", "PA"),
        }
        return tuple(name for name, there in found.items() if there), image.width * image.height


def _kind(message: str) -> str:
    if "claims more than" in message:
        return "bomb"
    return "truncated" if "truncated" in message.lower() else "unreadable"
