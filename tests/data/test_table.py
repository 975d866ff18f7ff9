"""Streams from tables."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from ductwork.data.streams import open_stream
from ductwork.data.table import table
from ductwork.errors import ConfigError, DataError
from tests.data.miniatures import picture

Row = dict[str, str]


@pytest.fixture
def rows(tmp_path: Path) -> list[Row]:
    found = []
    for seed in range(32):
        domain, label = ("day", "night")[seed % 2], ("cat", "dog")[seed // 2 % 2]
        path = f"images/{seed:02d}.png"
        picture(tmp_path / path, seed)
        found.append({"path": path, "label": label, "domain": domain, "split": "test" if seed % 8 > 5 else "train"})
    return found


def write(path: Path, rows: list[Row], columns: str = "path,label,domain,split") -> Path:
    names = columns.split(",")
    lines = [columns, *(",".join(f'"{row[name]}"' for name in names) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8-sig")
    return path


def test_a_table_with_a_split(tmp_path: Path, rows: list[Row]) -> None:
    stream = open_stream(str(write(tmp_path / "my photos.csv", rows)))
    assert (stream.name, stream.order, stream.classes) == ("my photos", ("day", "night"), ("cat", "dog"))
    assert [(len(d.train), len(d.test)) for d in stream] == [(12, 4), (12, 4)]
    by_path = {row["path"]: row for row in rows}
    for domain in stream:
        for images, split in ((domain.train, "train"), (domain.test, "test")):
            for i in range(len(images)):
                row = by_path[images.name(i)]
                assert (row["label"], row["domain"], row["split"]) == (images.label_name(i), domain.name, split)
    assert stream[0].train.read(0).shape == (3, 32, 32)
    assert open_stream(tmp_path / "my photos.csv", order="night").order == ("night",)


def test_a_table_without_a_split(tmp_path: Path, rows: list[Row]) -> None:
    path = write(tmp_path / "t.csv", rows, "domain,label,path")
    stream = open_stream(path, split=0.5)
    assert [(len(d.train), len(d.test)) for d in stream] == [(8, 8), (8, 8)]
    random.Random(1).shuffle(rows)
    assert open_stream(write(path, rows, "label,path,domain"), split=0.5).fingerprint == stream.fingerprint
    assert open_stream(path, split=0.5, seed=1).fingerprint != stream.fingerprint


def test_val_stands_for_test_where_there_is_none(tmp_path: Path, rows: list[Row]) -> None:
    for row in rows:
        if row["split"] == "test":
            row["split"] = "Val"
    assert [len(d.test) for d in open_stream(write(tmp_path / "t.csv", rows))] == [4, 4]
    next(row for row in rows if row["split"] == "Val" and row["domain"] == "day")["split"] = "test"
    assert [len(d.test) for d in open_stream(write(tmp_path / "t.csv", rows))] == [1, 4]


def test_absolute_paths_leave_no_trace_of_the_machine(tmp_path: Path, rows: list[Row]) -> None:
    relative = open_stream(write(tmp_path / "t.csv", rows))
    rows = [{**row, "path": str(tmp_path / row["path"])} for row in rows]
    assert open_stream(write(tmp_path / "t.csv", rows)).fingerprint == relative.fingerprint


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"path": "images/none.png"}, "t.csv:4: there is no file 'images/none.png'"),
        ({"path": "./images/00.png"}, "t.csv:4: './images/00.png' was listed before, in .*t.csv:2"),
        ({"label": ""}, "t.csv:4: 'label' is empty"),
        ({"split": "training"}, "t.csv:4: split is 'training'; say train, test or val"),
        ({"split": ""}, "t.csv:4: split is empty here"),
        ({"domain": "dusk"}, "domain 'dusk' has no test image"),
    ],
)
def test_rows_that_are_wrong(tmp_path: Path, rows: list[Row], change: Row, message: str) -> None:
    rows[2] = {**rows[2], **change}
    with pytest.raises(DataError, match=message):
        open_stream(write(tmp_path / "t.csv", rows))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no column 'path'"),
        ("file,label,domain\n", "no column 'path'.*known: domain, file, label"),
        ("path;label;domain\na;b;c\n", "parted by commas"),
        ("path,label,domain\n", "no row"),
        ("path,label,domain\na.png,b\n", "t.csv:2: this row has not as many fields"),
        ("path,label,domain\na.png,b,c,d\n", "t.csv:2: this row has not as many fields"),
        ('path,label,domain\n"a.png,b,c\n', "cannot be read as CSV"),
        ("path,label,domain\n\xff,b,c\n", "cannot be read as CSV"),
    ],
)
def test_tables_that_are_none(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.csv").write_text(text, encoding="latin-1")
    with pytest.raises(DataError, match=message):
        table(tmp_path / "t.csv")


def test_what_is_asked_of_a_table(tmp_path: Path, rows: list[Row]) -> None:
    path = write(tmp_path / "t.csv", rows)
    with pytest.raises(ConfigError, match="order names 'dai', which is no domain"):
        table(path, order=["dai"])
    with pytest.raises(ConfigError, match="root is for named streams"):
        open_stream(path, root=tmp_path)
    with pytest.raises(ConfigError, match="order 1 is for named streams"):
        open_stream(path, order=1)
    for row in rows:
        row["label"] = "cat"
    with pytest.raises(DataError, match="all images are of one class"):
        table(write(path, rows))


def test_a_folder_may_be_called_like_a_table(tmp_path: Path) -> None:
    for seed, place in enumerate(("a/x", "a/y")):
        for i in range(4):
            picture(tmp_path / "photos.csv" / place / f"{i}.png", seed * 4 + i)
    assert open_stream(tmp_path / "photos.csv").order == ("a",)


def test_parquet_needs_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(DataError, match=r"pip install 'ductwork\[parquet\]'"):
        open_stream(tmp_path / "t.parquet")


def test_parquet(tmp_path: Path, rows: list[Row]) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "t.parquet")
    assert open_stream(tmp_path / "t.parquet").fingerprint == open_stream(write(tmp_path / "t.csv", rows)).fingerprint
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        open_stream(tmp_path / "broken.parquet")
    parquet.write_table(pyarrow.table({"path": ["a"]}), tmp_path / "few.parquet")
    with pytest.raises(DataError, match="no column 'label'"):
        open_stream(tmp_path / "few.parquet")
