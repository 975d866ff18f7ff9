"""Streams from a table: CSV or Parquet with the columns ``path``, ``label``, ``domain`` and, optionally, ``split``.

Paths are relative to the table. ``split`` says ``train`` or ``test``; as in folders, ``val`` stands for ``test`` where
a domain has none, and is left alone where it has one. Without that column each class of a domain is cut as in folders.
Other columns are passed over. The order of the rows does not matter.
"""

from __future__ import annotations

import csv
import importlib
import os
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from ductwork.data.domain import Domain, ImageSet, Stream
from ductwork.data.images import FileSource
from ductwork.data.splits import train_test_split
from ductwork.data.transforms import check_name
from ductwork.errors import ConfigError, DataError, suggest

#: Extensions of the files that are taken for tables.
TABLES: Final = frozenset({".csv", ".parquet"})
_REQUIRED = ("path", "label", "domain")


class _Row(NamedTuple):
    path: str
    label: str
    domain: str
    split: str  # empty where the table has no such column
    where: str


def table(
    path: str | os.PathLike[str],
    *,
    order: Sequence[str] | str | None = None,
    split: float = 0.7,
    seed: int = 1993,
    transform: str | None = None,
    name: str | None = None,
) -> Stream:
    """The stream of domains in a table, sorted by name or in the given ``order``, which may be a selection.

    ``split`` is the share of training images where the table has no ``split`` column, and ``seed`` chooses which ones.
    """
    check_name(transform or "backbone")
    place = Path(path).expanduser()
    rows = _checked(place, _rows(place))
    names = sorted({row.domain for row in rows})
    chosen = names if order is None else _chosen(place, order, names)
    domains = tuple(_domain(place, each, [row for row in rows if row.domain == each], split, seed) for each in chosen)
    classes = sorted({label for domain in domains for label in domain.classes})
    if len(classes) < 2:
        raise DataError(f"{place}: all images are of one class, {classes[0]!r}; a classifier needs two or more")
    return Stream(name or unicodedata.normalize("NFC", place.stem), domains, transform=transform or "backbone")


def _rows(path: Path) -> list[_Row]:
    read = _csv(path) if path.suffix.lower() == ".csv" else _parquet(path)
    found = []
    for number, values in read:
        name, label, domain, split = (_text(values.get(column)) for column in (*_REQUIRED, "split"))
        found.append(_Row(name, label, domain, split, f"{path}:{number}"))
    if not found:
        raise DataError(f"{path}: this table has no row")
    return found


def _text(value: object) -> str:
    return "" if value is None else unicodedata.normalize("NFC", str(value).strip())


def _csv(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Line numbers and rows. The standard library's reader knows quoting; the signature of Excel is passed over."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, strict=True)
            _check_columns(path, reader.fieldnames or ())
            for values in reader:
                if None in values or None in values.values():
                    raise DataError(f"{path}:{reader.line_num}: this row has not as many fields as the first line")
                yield reader.line_num, values
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as CSV ({error})") from error


def _parquet(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise DataError(f"{path}: Parquet needs pyarrow: pip install pyarrow (or save it as CSV)") from None
    try:
        columns = parquet.read_schema(path).names
        _check_columns(path, columns)
        wanted = [name for name in (*_REQUIRED, "split") if name in columns]
        rows = parquet.read_table(path, columns=wanted).to_pylist()
    except (OSError, ValueError) as error:  # pyarrow's own errors are kinds of these
        raise DataError(f"{path}: cannot be read as Parquet ({' '.join(str(error).split())})") from error
    yield from enumerate(rows, start=1)


def _check_columns(path: Path, columns: Sequence[str]) -> None:
    for name in _REQUIRED:
        if name not in columns:
            commas = "; columns are parted by commas" if len(columns) == 1 else suggest(name, columns)
            raise DataError(f"{path}: there is no column {name!r}{commas}")


def _checked(table: Path, rows: Sequence[_Row]) -> list[_Row]:
    """The rows sorted by path, with paths that are relative to the table and lead to files."""
    base = os.path.abspath(table.parent)
    seen: dict[str, str] = {}
    checked = []
    for row in rows:
        for column in _REQUIRED:
            if not getattr(row, column):
                raise DataError(f"{row.where}: {column!r} is empty")
        path = Path(os.path.relpath(os.path.join(base, row.path), base)).as_posix()  # also of absolute paths
        if not os.path.isfile(os.path.join(base, path)):
            raise DataError(f"{row.where}: there is no file {row.path!r}; paths are relative to the table")
        if path in seen:
            raise DataError(f"{row.where}: {row.path!r} was listed before, in {seen[path]}")
        seen[path] = row.where
        part = row.split.lower()
        if part not in ("", "train", "test", "val"):
            raise DataError(f"{row.where}: split is {row.split!r}; say train, test or val")
        checked.append(row._replace(path=path, split=part))
    empty = next((row for row in checked if not row.split), None)
    if empty is not None and any(row.split for row in checked):
        raise DataError(f"{empty.where}: split is empty here but not everywhere; fill it in or remove the column")
    return sorted(checked)


def _domain(table: Path, name: str, rows: Sequence[_Row], share: float, seed: int) -> Domain:
    classes = tuple(sorted({row.label for row in rows}))
    number = {label: i for i, label in enumerate(classes)}
    source = FileSource(os.path.abspath(table.parent), tuple(row.path for row in rows))
    images = ImageSet(source, np.array([number[row.label] for row in rows]), classes)
    if not rows[0].split:
        train, test = train_test_split([row.path for row in rows], images.labels, share, seed)
    else:
        parts = [row.split for row in rows]
        held_out = "test" if "test" in parts else "val"
        train, test = (np.flatnonzero([part == wanted for part in parts]) for wanted in ("train", held_out))
    for what, positions in (("training", train), ("test", test)):
        if not len(positions):
            raise DataError(f"{table}: domain {name!r} has no {what} image")
    return Domain(name, images.subset(train), images.subset(test))


def _chosen(table: Path, order: Sequence[str] | str, names: Sequence[str]) -> list[str]:
    parts = order.split(",") if isinstance(order, str) else [str(part) for part in order]
    wanted = [unicodedata.normalize("NFC", part.strip()) for part in parts]
    for name in wanted:
        if name not in names:
            raise ConfigError(f"{table}: order names {name!r}, which is no domain{suggest(name, names)}")
    return wanted
