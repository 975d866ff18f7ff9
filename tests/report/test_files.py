"""Tables and figures as files: every kind, each readable, none lost."""

from __future__ import annotations

import csv
import xml.etree.ElementTree as ET
from pathlib import Path

from PIL import Image

from ductwork import report
from ductwork.report.files import Files, slug
from ductwork.report.tables import Cell, Column, Table
from tests.report.runs import write_run


def test_every_table_and_figure_of_a_page(tmp_path: Path) -> None:
    for method in ("duct", "finetune"):
        write_run(tmp_path / "runs" / method, method)
    plain = report.build([tmp_path / "runs"], tmp_path / "plain.html").read_bytes()
    page = report.build([tmp_path / "runs"], tmp_path / "page.html", tmp_path / "files")
    assert page.read_bytes() == plain, "files change nothing about the page"
    folder = tmp_path / "files" / "digits"
    figures = {path.stem for path in folder.glob("*.svg")}
    assert figures == {path.stem for path in folder.glob("*.png")}
    assert {
        "curves",
        "forgetting",
        "matrix-duct",
        "phases-duct",
        "time-by-phase",
        "accuracy-against-parameters",
    } <= figures
    tables = {kind: {path.stem for path in folder.glob(f"*.{kind}")} for kind in ("html", "md", "tex", "csv")}
    assert len({frozenset(names) for names in tables.values()}) == 1
    assert {"methods", "transport", "work-of-a-run", "matrix-duct", "accuracy-after-each-domain"} <= tables["csv"]
    with Image.open(folder / "curves.png") as image:
        assert image.convert("RGB").getpixel((0, 0)) == (255, 255, 255) and image.width > 2000
    assert ET.parse(folder / "curves.svg").getroot().tag.endswith("svg")
    with open(folder / "methods.csv", encoding="utf-8", newline="") as file:
        assert {row["Method"] for row in csv.DictReader(file)} == {"duct", "finetune"}


def test_streams_have_folders_of_their_own_and_names_are_not_lost(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a", "duct", stream="one")
    write_run(tmp_path / "runs" / "b", "duct", stream="../two", data={"fingerprint": "x"})
    report.build([tmp_path / "runs"], tmp_path / "page.html", tmp_path / "files")
    assert {path.name for path in (tmp_path / "files").iterdir() if path.is_dir()} == {"one", "two"}
    assert (tmp_path / "files" / "all-results.tex").exists()
    files = Files(tmp_path / "twice")
    table = Table("a/b", (Column("x"),), ((Cell("1"),),))
    files.table(table)
    files.table(table)
    assert {path.stem for path in files.written} == {"a-b", "a-b-2"}
    assert slug("日本") == "unnamed"
