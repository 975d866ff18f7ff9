"""The examples work as they stand, from outside the package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.slow
def test_a_method_from_outside_the_package(tmp_path: Path) -> None:
    """Built and installed by pip as its users would, found through its entry point, run on the demo stream."""
    assert len((EXAMPLES / "nearest-mean/nearest_mean.py").read_text().splitlines()) <= 40
    place = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--target", str(place), str(EXAMPLES / "nearest-mean")], check=True)
    search = os.pathsep.join([str(place), *filter(None, [os.environ.get("PYTHONPATH")])])
    ductwork = [sys.executable, "-m", "ductwork.cli.main"]

    def call(*words: str) -> str:
        environment = {**os.environ, "PYTHONPATH": search}
        done = subprocess.run([*ductwork, *words], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "nearest-mean" in call("list", "methods")
    out = tmp_path / "run"
    call("run", "method=nearest-mean", "order=[handwritten,scanned]", "engine.workers=0", "--out", str(out))
    result = json.loads((out / "result.json").read_text())
    assert result["status"] == "done" and result["A_B"] > 50
