"""The first command of a new user, with the one method that takes seconds."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Command


def test_the_demo_is_done_once_and_reported(ductwork: Command, tmp_path: Path) -> None:
    first = ductwork("demo", "--methods", "simplecil", "--order", "mosaic,scanned", "--out", str(tmp_path))
    assert first.code == 0, first.err
    assert "simplecil\t" in first.out
    assert (tmp_path / "report.html").as_uri() in first.out
    (file,) = tmp_path.glob("*/result.json")
    result, written = json.loads(file.read_text()), file.stat().st_mtime_ns
    assert result["order"] == ["mosaic", "scanned"] and result["status"] == "done"
    assert result["stages"][0]["work"]["reused"] == 0, "each method pays for all of its work"

    again = ductwork("demo", "--methods", "simplecil", "--order", "mosaic,scanned", "--out", str(tmp_path))
    assert again.code == 0 and file.stat().st_mtime_ns == written


def test_an_order_that_is_none(ductwork: Command, tmp_path: Path) -> None:
    wrong = ductwork("demo", "--order", "mosaik", "--out", str(tmp_path))
    assert wrong.code == 2
    assert "did you mean 'mosaic'" in wrong.err and "Traceback" not in wrong.err
