"""Streams from a table: CSV or Parquet with the columns ``path``, ``label``, ``domain`` and, optionally, ``split``.

Paths are relative to the table. ``split`` says ``train`` or ``test``; as in folders, ``val`` stands for ``test`` where
a domain has none, and is left alone where it has one. Without that column each class of a domain is cut as in folders.
Other columns are passed over. The order of the rows does not matter.
"""

from __future__ import annotations

import csv
import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ductwork.data.domain import Stream
from ductwork.data.images import FileSource
from ductwork.data.listing import own_name
from ductwork.data.rows import Row, Wishes, stream_of, text
from ductwork.errors import DataError, suggest

#: Extensions of the files that are taken for tables.
TABLES: Final = frozenset({".csv", ".parquet"})
_REQUIRED = ("path", "label", "domain")


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
    place = Path(path).expanduser()
    rows = sorted(_rows(place))
    source = FileSource(os.path.abspath(place.parent), tuple(file for file, _ in rows))
    wishes = Wishes(order, split, seed, transform)
    return stream_of([row for _, row in rows], source, wishes, name=name or own_name(place.stem), place=str(place))


def _rows(path: Path) -> list[tuple[str, Row]]:
    """Files, relative to the table, and what is said of them."""
    read = _csv(path) if path.suffix.lower() == ".csv" else _parquet(path)
    base = os.path.abspath(path.parent)
    found: dict[str, Row] = {}
    for number, values in read:
        name, label, domain, split = (text(values.get(column)) for column in (*_REQUIRED, "split"))
        row = Row(label, domain, split, f"{path}:{number}")
        file = _file(name, base, row.where)
        if file in found:
            raise DataError(f"{row.where}: {name!r} was listed before, in {found[file].where}")
        found[file] = row
    if not found:
        raise DataError(f"{path}: this table has no row")
    return list(found.items())


def _file(name: str, base: str, where: str) -> str:
    """A path of the table, which may be absolute, as one that is relative to the table and leads to a file."""
    if not name:
        raise DataError(f"{where}: 'path' is empty")
    try:
        file = Path(os.path.relpath(os.path.join(base, name), base)).as_posix()
    except ValueError:  # Windows: on another drive
        raise DataError(f"{where}: {name!r} is on another drive than the table; move the table there") from None
    if not os.path.isfile(os.path.join(base, file)):
        raise DataError(f"{where}: there is no file {name!r}; paths are relative to the table")
    return file


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
        raise DataError(f"{path}: Parquet needs pyarrow: pip install 'ductwork[parquet]', or save it as CSV") from None
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
