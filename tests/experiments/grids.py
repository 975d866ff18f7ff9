"""Grids on small pictures, and how tests call, watch and compare them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ductwork.experiments.watch import PlainLines, now
from tests.experiments.pictures import QUICK_DUCT, stable, weights

ENGINE = {"precision": "fp32", "workers": 0, "accelerator": "cpu"}
DUCT = f"methods=[{json.dumps({'method': 'duct', 'params': QUICK_DUCT})}]"  # of a grid only the runs of this method


def write_grid(path: Path, photos: Path) -> Path:
    """Four runs, of which none fails."""
    methods = [{"method": "duct", "params": QUICK_DUCT}, "simplecil"]
    grid = {"defaults": {"engine": ENGINE}, "streams": [str(photos)], "seeds": [1, 2], "methods": methods}
    path.write_text(json.dumps(grid))
    return path


class Quiet(PlainLines):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


def begin(file: Path, out: Path, *words: str) -> subprocess.Popen[str]:
    """A command in a session of its own, which can be sent signals as from a terminal."""
    return subprocess.Popen(
        [sys.executable, "-m", "ductwork.cli.main", "bench", str(file), "--out", str(out), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def assert_same(out: Path, other: Path, which: str = "*") -> None:
    """The same runs, of those whose folders are called so, with the same numbers and weights, to the bit."""
    runs = sorted(path.parent.name for path in other.glob(f"{which}/result.json"))
    assert runs == sorted(path.parent.name for path in out.glob("*/result.json"))
    for name in runs:
        assert stable(out / name, "work") == stable(other / name, "work")
        assert weights(out / name) == weights(other / name)


def wait_for_work(
    out: Path, method: str, process: subprocess.Popen[str], where: Callable[[Path], bool] = lambda folder: True
) -> None:
    """Until a run of the method trains; ``where`` says in which folders that counts."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if any("finetune" in now(folder) and where(folder) for folder in out.glob(f"*-{method}-*")):
            return
        time.sleep(0.01)
    raise AssertionError(f"no {method} came to training: {process.poll()}")


def mentioned(text: str) -> list[Path]:
    """Processes whose command line has ``text``."""
    return [path for path in Path("/proc").glob("[0-9]*/cmdline") if text.encode() in _read(path)]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
