"""Reading an image file: every kind that Pillow knows becomes uint8 RGB, or one line that says which file is broken.

What is done with pictures that are not plain RGB:

* the EXIF orientation is applied, so that a photograph stands as its camera meant it;
* transparent pixels are laid on white, whether transparency is a channel, a palette entry or a colour key;
* grey, palette, CMYK, YCbCr and HSV are converted by Pillow (colour profiles are not applied);
* 16-bit grey is scaled to 8 bits (65535 becomes 255), not cut off; 16-bit colour is reduced by Pillow likewise;
* of an animation or a file of several pages the first one counts;
* 32-bit pixels have no agreed range and are refused.
"""

from __future__ import annotations

import io
import os
import time
import unicodedata
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError

from ductwork.errors import DataError

#: What counts as an image file, in any case. Everything else in a folder is passed over.
EXTENSIONS = frozenset(
    {".bmp", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)
EMPTY = "the image is empty (0 bytes); replace or remove it"
_TICK_NS = 20_000_000


def is_image(name: str) -> bool:
    """Whether a file of this name is taken for an image: it has a known extension and is not hidden."""
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in EXTENSIONS


def read_image(path: str | os.PathLike[str]) -> torch.Tensor:
    """The image in a file as uint8 ``[3, H, W]`` RGB. Raises DataError that names the file."""
    return _read(path, os.fspath(path))


def decode_image(content: bytes, name: str) -> torch.Tensor:
    """The image in the content of a file, as :func:`read_image` gives it; ``name`` is for messages."""
    if not content:
        raise DataError(f"{name}: {EMPTY}")
    return _read(io.BytesIO(content), name)


def _read(file: str | os.PathLike[str] | io.BytesIO, name: str) -> torch.Tensor:
    try:
        with Image.open(file) as image:
            image.load()  # here and not later, or a truncated file would fail where its name is forgotten
            _stand_upright(image)
            pixels = np.array(_to_rgb(image))
    except DataError as error:
        raise DataError(f"{name}: {error}") from None
    except Exception as error:  # damaged files make decoders raise nearly everything
        raise DataError(f"{name}: {_what_is_wrong(file, error)}") from error
    # The view keeps the memory of the decoder: cropping it is free, and resizing it is faster than resizing planes.
    return torch.from_numpy(pixels).permute(2, 0, 1)


@dataclass(frozen=True, eq=False)
class FileSource:
    """Image files under one folder. ``paths`` are relative to ``root``, with forward slashes.

    A name is its path in Unicode's composed form, so that it is the same on file systems that store it decomposed.
    """

    root: str
    paths: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, index: int) -> str:
        return unicodedata.normalize("NFC", self.paths[index])

    def path(self, index: int) -> Path:
        """Where the file is on this machine."""
        return Path(self.root, self.paths[index])

    def signature(self, index: int) -> str:
        try:
            return str(os.stat(self.path(index)).st_size)
        except OSError as error:
            raise DataError(f"{self.path(index)}: {_what_is_wrong(self.path(index), error)}") from error

    def evidence(self, index: int) -> str:
        """Tells the file from every other one, and from itself before it was changed.

        The times are there because a file can be replaced by one of the same size; the time of the last change of its
        entry, because unpacking and copying may set the other one to anything.
        """
        return file_evidence(self.path(index))

    def read(self, index: int) -> torch.Tensor:
        return read_image(self.path(index))


def file_evidence(path: Path) -> str:
    """What changes when a file does, without looking into it."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise DataError(f"{path}: {_what_is_wrong(path, error)}") from error
    # What was changed just now may change again before the clock of the file system ticks: nothing would tell.
    fresh = time.time_ns() if abs(time.time_ns() - status.st_ctime_ns) < _TICK_NS else 0
    return f"{os.path.abspath(path)}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_ctime_ns}\0{fresh}"


def _stand_upright(image: Image.Image) -> None:
    with suppress(Exception):  # if the EXIF block is damaged, the pixels are still fine
        ImageOps.exif_transpose(image, in_place=True)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        # Pillow's own conversion would cut off at 255
        image = Image.fromarray((np.asarray(image).astype(np.uint32) / 257).round().astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise DataError("its pixels are 32-bit numbers of unknown range; save it with 8 or 16 bits a channel")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def _what_is_wrong(file: str | os.PathLike[str] | io.BytesIO, error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "the image is not there (any more)"
    if isinstance(error, PermissionError):
        return "no permission to read this image"
    if isinstance(error, IsADirectoryError):
        return "this is a folder, not an image"
    if isinstance(error, Image.DecompressionBombError):
        return f"the image claims more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels; make it smaller or remove it"
    if not isinstance(file, io.BytesIO) and os.path.exists(file) and not os.path.getsize(file):
        return EMPTY
    if isinstance(error, UnidentifiedImageError):
        return "this is not an image, whatever its extension says; replace or remove it"
    reason = " ".join(str(error).split()) or type(error).__name__
    return f"the image is damaged ({reason}); replace or remove it"
