"""One run by several processes, from the command line: what befalls one of them costs nothing but time.

A single run goes through everything, since starting torch twice takes longer than learning.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ductwork.engine.progress import Silent
from ductwork.experiments.config import load_config
from ductwork.experiments.results import RunResult, read_result
from ductwork.experiments.run import run
from tests.experiments.pictures import QUICK_DUCT, epochs, pictures, wait_for_checkpoints

pytestmark = pytest.mark.slow

ENGINE = ["engine.precision=fp32", "engine.accelerator=cpu", "engine.workers=0"]
SETTINGS = [*(f"params.{key}={value}" for key, value in QUICK_DUCT.items()), *ENGINE]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "--max-restarts", "1"]


def start(photos: Path, out: Path, *words: str, torchrun: bool = False) -> subprocess.Popen[str]:
    program = [*(TORCHRUN if torchrun else []), "-m", "ductwork.cli.main", "run"]
    return subprocess.Popen(
        [sys.executable, *program, f"stream={photos}", *SETTINGS, "--out", str(out), *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, list[str]]:
    """Exit code, what was printed, and what was complained of."""
    out, err = process.communicate(timeout=120)
    assert "Traceback" not in err, err
    return process.returncode, out, [line for line in err.splitlines() if line.startswith("ductwork:")]


def ranks_of(process: subprocess.Popen[str]) -> list[int]:
    """The processes that a command, or torchrun, has started to compute, in their order."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    commands = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children}
    return [pid for pid, command in commands.items() if b"spawn_main" in command or b"ductwork.cli" in command]


def figures(result: RunResult) -> list[float]:
    found = [value for stage in result.stages for value in (*stage.accuracy.values(), stage.similarity or 0.0)]
    return [*found, result.A_bar or 0.0, result.A_B or 0.0, result.forgetting or 0.0]


class Impatient(Silent):
    """Somebody who presses Ctrl-C when the first network has been trained."""

    def begin(self, work: str, images: int) -> None:
        if "similarity" in work:
            raise KeyboardInterrupt


def test_a_run_outlives_its_processes_whatever_their_number(tmp_path: Path) -> None:
    photos, alone, out = pictures(tmp_path / "photos"), tmp_path / "alone", tmp_path / "run"
    config = load_config(None, [f"stream={photos}", *SETTINGS])
    expected = run(config, alone)

    with pytest.raises(KeyboardInterrupt):  # what one process has begun ...
        run(config, out, progress=Impatient())

    process = start(photos, out, "--devices", "2")  # ... two can go on with, until one of them dies ...
    assert wait_for_checkpoints(process, out, 3), ended(process)
    os.kill(ranks_of(process)[1], signal.SIGKILL)
    code, _, complaints = ended(process)
    assert code == 2
    assert len(complaints) == 1 and "process 2 of 2 was ended by SIGKILL" in complaints[0]

    process = start(photos, out, "--devices", "2")  # ... or somebody interrupts them ...
    assert wait_for_checkpoints(process, out, 3), ended(process)
    ranks = ranks_of(process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    code, _, complaints = ended(process)
    assert code == 130
    assert len(complaints) == 1 and "nothing is lost" in complaints[0]
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks)

    process = start(photos, out, torchrun=True)  # ... and torchrun brings it to its end, starting them again
    assert wait_for_checkpoints(process, out, 3), ended(process)
    os.kill(ranks_of(process)[1], signal.SIGKILL)
    code, printed, complaints = ended(process)
    assert code == 0
    assert len(complaints) <= 1 and all("another process of this run ended" in line for line in complaints)
    assert printed.count("A_bar") == 1
    found = read_result(out)
    assert (found.status, found.processes, expected.processes) == ("done", 2, 1)
    assert figures(found) == pytest.approx(figures(expected), rel=1e-4)
    assert [stage.n_test for stage in found.stages] == [stage.n_test for stage in expected.stages]
    logged, once = epochs(out), epochs(alone)
    assert [line | {"loss": 0.0} for line in logged] == [line | {"loss": 0.0} for line in once]
    assert [line["loss"] for line in logged] == pytest.approx([line["loss"] for line in once], rel=1e-3)
