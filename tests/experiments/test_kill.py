"""A run that is killed at any moment and started again ends with the numbers and weights of one that was not.

Real processes, real SIGKILL. The moments are counted in checkpoints, with a delay that puts the blow somewhere between
two of them. (That every single checkpoint can be resumed from is tested in ``methods/test_contract.py``.)
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ductwork.experiments.config import load_config
from ductwork.experiments.run import run
from tests.experiments.pictures import QUICK_DUCT, epochs, stable, wait_for_checkpoints, weights

# without a cache every run decodes what another one has decoded, and counts it
ENGINE = ["engine.precision=fp32", "engine.workers=1", "engine.cache=false"]
SETTINGS = [*(f"params.{key}={value}" for key, value in QUICK_DUCT.items()), *ENGINE]


def command(photos: Path, out: Path) -> list[str]:
    return [sys.executable, "-m", "ductwork.cli.main", "run", f"stream={photos}", *SETTINGS, "--out", str(out)]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def finish(photos: Path, out: Path) -> None:
    run(load_config(None, [f"stream={photos}", *SETTINGS]), out)


def kill_after(photos: Path, out: Path, checkpoints: int, delay: float) -> bool:
    """Kill a run ``delay`` seconds after its n-th checkpoint; False if it was faster than that."""
    process = subprocess.Popen(
        command(photos, out), env=environment(), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    if not wait_for_checkpoints(process, out, checkpoints):
        return False
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


@pytest.fixture(scope="module")
def unbroken(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("unbroken") / "run"
    finish(photos, out)
    return out


@pytest.mark.slow
@pytest.mark.parametrize(("checkpoints", "delay"), [(1, 0.05), (9, 0.0), (17, 0.01)])
def test_killed_and_started_again(checkpoints: int, delay: float, photos: Path, unbroken: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert kill_after(photos, out, checkpoints, delay), "the run was over before the blow"
    assert json.loads((out / "result.json").read_text())["status"] == "running"
    finish(photos, out)
    assert stable(out) == stable(unbroken)
    assert epochs(out) == epochs(unbroken)
    assert weights(out) == weights(unbroken)


@pytest.mark.slow
def test_killed_again_and_again(photos: Path, unbroken: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    for checkpoints in (2, 6):
        assert kill_after(photos, out, checkpoints, 0.01), "the run was over before the blow"
    finish(photos, out)
    assert stable(out) == stable(unbroken)
    assert weights(out) == weights(unbroken)


@pytest.mark.slow
def test_interrupt_is_polite(photos: Path, unbroken: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = subprocess.Popen(command(photos, out), env=environment(), stderr=subprocess.PIPE, text=True)
    while not (out / "checkpoint" / "manifest.json").exists() and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "nothing is lost" in err
    assert "Traceback" not in err
    finish(photos, out)
    assert weights(out) == weights(unbroken)
