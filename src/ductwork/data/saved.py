"""Streams from Hugging Face datasets on disk, as ``save_to_disk`` writes them. They are read, never run.

The columns are ``image`` (an Image), ``label`` (a ClassLabel, text or numbers) and ``domain``, and there may be a
``split``. In a dictionary of datasets the names of the parts, such as ``train`` and ``test``, say the split. Other
columns are passed over. Images stay in the memory-mapped files until they are read.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ductwork.data.domain import Stream
from ductwork.data.images import decode_image, file_evidence
from ductwork.data.listing import own_name
from ductwork.data.rows import Row, Wishes, stream_of, text
from ductwork.errors import DataError, suggest

_REQUIRED = ("image", "label", "domain")


@dataclass(frozen=True, eq=False)
class SavedSource:
    """The image column of one or several saved datasets, one after another."""

    parts: tuple[tuple[str, Any], ...]  # name and dataset, whose images are left as bytes
    rows: tuple[tuple[int, int], ...]  # part and row of each image
    sizes: tuple[int, ...]
    files: tuple[str, ...]  # evidence of the files of each part

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, index: int) -> str:
        part, row = self.rows[index]
        return f"{self.parts[part][0]}/{row:07d}".lstrip("/")

    def signature(self, index: int) -> str:
        return str(self.sizes[index])

    def evidence(self, index: int) -> str:
        part, row = self.rows[index]
        if not self.files[part]:
            raise DataError(f"{self.name(index)}: lies in memory only")
        return f"{self.files[part]}\0{row}"

    def encoded(self, index: int) -> bytes:
        part, row = self.rows[index]
        image = self.parts[part][1][row]["image"] or {}
        return image.get("bytes") or b""  # saving puts the content of files in

    def read(self, index: int) -> torch.Tensor:
        return decode_image(self.encoded(index), self.name(index))


def is_saved_dataset(path: Path) -> bool:
    """Whether ``save_to_disk`` wrote this folder."""
    return (path / "dataset_dict.json").is_file() or (
        (path / "dataset_info.json").is_file() and (path / "state.json").is_file()
    )


def saved_dataset(
    path: str | os.PathLike[str],
    *,
    order: Sequence[str] | str | None = None,
    split: float = 0.7,
    seed: int = 1993,
    transform: str | None = None,
    name: str | None = None,
) -> Stream:
    """The stream of domains in a saved dataset, sorted by name or in the given ``order``, which may be a selection.

    ``split`` is the share of training images where nothing says the split, and ``seed`` chooses which ones.
    """
    place = Path(path).expanduser()
    parts = tuple(_parts(place))
    rows: list[Row] = []
    numbers: list[tuple[int, int]] = []
    sizes: list[int] = []
    for number, (part, data) in enumerate(parts):
        rows += _rows(data, part, f"{place / part}")
        numbers += [(number, row) for row in range(len(data))]
        sizes += _sizes(data)
    source = SavedSource(parts, tuple(numbers), tuple(sizes), tuple(_evidence(data) for _, data in parts))
    return stream_of(
        rows, source, Wishes(order, split, seed, transform), name=name or own_name(place.name), place=str(place)
    )


def _parts(path: Path) -> Iterator[tuple[str, Any]]:
    """Names and datasets, their images as bytes."""
    try:
        library = importlib.import_module("datasets")
    except ImportError:
        raise DataError(f"{path}: a saved dataset needs a package: pip install 'ductwork[hf]'") from None
    try:
        found = library.load_from_disk(str(path))
    except Exception as error:  # pyarrow and the file system have many ways to say it
        raise DataError(f"{path}: cannot be read as a saved dataset ({' '.join(str(error).split())})") from error
    parts = dict(found) if isinstance(found, Mapping) else {"": found}
    if not parts or not any(len(data) for data in parts.values()):
        raise DataError(f"{path}: this dataset has no row")
    for part, data in sorted(parts.items()):
        for column in _REQUIRED:
            if column not in data.column_names:
                raise DataError(f"{path / part}: there is no column {column!r}{suggest(column, data.column_names)}")
        if not isinstance(data.features["image"], library.Image):
            raise DataError(
                f"{path / part}: the column 'image' holds no images; cast it to datasets.Image() and save again"
            )
        yield part, data.cast_column("image", library.Image(decode=False))


def _rows(data: Any, part: str, where: str) -> Iterator[Row]:
    columns = [column for column in (*_REQUIRED[1:], "split") if column in data.column_names]
    said = {column: _words(data, column) for column in columns}
    splits = said.get("split") or [part] * len(data)
    for number, (label, domain, split) in enumerate(zip(said["label"], said["domain"], splits, strict=True)):
        yield Row(label, domain, split, f"{where}: row {number}")


def _words(data: Any, column: str) -> list[str]:
    """A column as text; numbers that stand for names as these names."""
    values, names = data[column][:], getattr(data.features[column], "names", None)
    if names is None:
        return [text(value) for value in values]
    return [text(names[value]) if value is not None and value >= 0 else "" for value in values]


def _sizes(data: Any) -> Iterator[int]:
    """Bytes of each image, for which no image is touched."""
    compute = importlib.import_module("pyarrow.compute")
    for batch in data.with_format("arrow").iter(1000):
        yield from (
            size or 0 for size in compute.binary_length(compute.struct_field(batch["image"], "bytes")).to_pylist()
        )


def _evidence(data: Any) -> str:
    return "\0".join(file_evidence(Path(file["filename"])) for file in data.cache_files)
