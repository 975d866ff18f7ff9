"""Grids done for real, in processes of this machine: failures, kills and interruptions cost what they must, no more."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from ductwork.errors import DuctworkError
from ductwork.experiments.bench import bench
from ductwork.experiments.executors import Ended, Task
from ductwork.experiments.executors.local import LocalExecutor
from ductwork.experiments.grid import Grid, load_grid
from ductwork.experiments.plan import Plan, make_plan
from ductwork.experiments.results import RunResult
from ductwork.experiments.watch import now, title
from tests.cli.conftest import Command
from tests.experiments.grids import DUCT, ENGINE, Quiet, assert_same, begin, mentioned, wait_for_work
from tests.experiments.pictures import QUICK_DUCT, stable, weights

pytestmark = pytest.mark.slow

TWO = ("--jobs", "2")


def typed(file: Path, out: Path, *more: str) -> list[str]:
    """What a user types for a grid that two processes do."""
    return ["bench", str(file), "--out", str(out), *TWO, *more]


def test_a_grid_is_done_once(ductwork: Command, file: Path, unbroken: Path, tmp_path: Path) -> None:
    out = shutil.copytree(unbroken, tmp_path / "out")
    times = {path: path.stat().st_mtime_ns for path in out.glob("*/result.json")}
    done = ductwork(*typed(file, out))
    assert done.code == 0, done.err
    assert done.out.splitlines() == [f"4 runs in {out}: 4 done"]
    larger = ductwork(*typed(file, out, "seeds=[1,2,3]", "methods=[simplecil]"))
    assert larger.code == 0, larger.err
    assert "3 runs" in larger.out.splitlines()[0]
    assert "2 done, 1 left" in larger.out.splitlines()[0]
    assert {path: path.stat().st_mtime_ns for path in times} == times


def test_features_of_the_frozen_backbone_are_computed_once(file: Path, unbroken: Path, tmp_path: Path) -> None:
    images = sum(stage["n_train"] for stage in json.loads(next(unbroken.glob("*/result.json")).read_text())["stages"])
    results = [json.loads(path.read_text()) for path in unbroken.glob("photos*/result.json")]
    reused = sum(stage["work"]["reused"] for r in results for stage in r["stages"])
    by_simplecil = sum(s["work"]["frozen"] for r in results if r["method"] == "simplecil" for s in r["stages"])
    computed_first = sum(
        s["work"]["frozen"] for r in results if r["method"] == "duct" for s in r["stages"]
    ) - 2 * images * (1 + QUICK_DUCT["retrain_views"])  # the centres after fine-tuning, and views
    assert by_simplecil + computed_first == images
    assert reused == (len(results) - 1) * images
    plan = make_plan(load_grid(file, ["engine.shared=false", "seeds=[1]"]), tmp_path)
    bench(plan, LocalExecutor(2), Quiet())
    for task in plan.tasks:
        assert weights(task.folder) == weights(unbroken / task.folder.name)
        assert stable(task.folder, "work") == stable(unbroken / task.folder.name, "work")
        assert not any(s["work"]["reused"] for s in json.loads((task.folder / "result.json").read_text())["stages"])


def test_a_failed_run_does_not_stop_the_others(ductwork: Command, photos: Path, tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    bad = {"method": "finetune", "params": {"epochs": 2, "batch_size": 8, "lr_backbone": 1e30, "lr_head": 1e30}}
    grid = {"defaults": {"engine": ENGINE}, "streams": [str(photos)], "methods": [bad, "simplecil"]}
    path.write_text(json.dumps(grid))
    out = tmp_path / "out"
    done = ductwork(*typed(path, out))
    assert done.code == 1
    assert "Traceback" not in done.err
    assert "training diverged" in done.out
    assert "1 done, 1 failed" in done.out
    failed = next(r for r in map(read, out.glob("*/result.json")) if r.status == "failed")
    assert failed.reason is not None and "training diverged" in failed.reason
    again = ductwork(*typed(path, out))
    assert again.code == 1
    assert "1 done, 1 failed" in again.out.splitlines()[0]
    retried = ductwork(*typed(path, out, "--retry-failed", "--dry-run"))
    assert retried.code == 0
    assert "1 done, 1 left" in retried.out


def read(path: Path) -> RunResult:
    return RunResult.model_validate_json(path.read_text())


def test_a_grid_outlives_ctrl_c_and_a_kill(ductwork: Command, file: Path, unbroken: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = begin(file, out, *TWO)
    wait_for_work(out, "duct", process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "nothing is lost" in err
    assert "Traceback" not in err
    assert not mentioned(str(out))

    process = begin(file, out, *TWO)
    wait_for_work(out, "duct", process)
    process.kill()
    process.communicate()

    done = ductwork(*typed(file, out))  # at once: the workers of the second are gone, or their folders would be locked
    assert done.code == 0, done.err
    assert_same(out, unbroken)


class Impatient(LocalExecutor):
    """Lets others look every few milliseconds: the work to be killed takes a second on a fast machine."""

    def wait(self, seconds: float) -> list[Ended]:
        return super().wait(min(seconds, 0.01))


class Killer(Quiet):
    """Kills the worker of a DUCT run in the middle of its training, so many times."""

    def __init__(self, executor: LocalExecutor, times: int) -> None:
        super().__init__()
        self.executor, self.times, self.killed = executor, times, 0

    def look(self, running: Mapping[int, Task]) -> None:
        for worker in self.executor._workers:
            if (
                worker.task.config.method == "duct"
                and "finetune" in now(worker.task.folder)
                and self.killed < self.times
            ):
                pid = worker.process.pid
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
                worker.process.join()
                (worker.task.folder / ".now.json").unlink()
                self.killed += 1


def killed(file: Path, out: Path, *, times: int, retries: int) -> tuple[Plan, Sequence[RunResult], Killer]:
    plan = make_plan(load_grid(file, ["seeds=[1]", DUCT]), out)
    executor = Impatient(2)  # as many threads a run as in `unbroken`: their number decides the last bits
    watcher = Killer(executor, times)
    return plan, bench(plan, executor, watcher, retries=retries), watcher


def test_a_killed_worker_costs_one_resume(file: Path, unbroken: Path, tmp_path: Path) -> None:
    plan, results, watcher = killed(file, tmp_path, times=2, retries=2)
    assert [result.status for result in results] == ["done"]
    assert watcher.killed == 2
    assert len([line for line in watcher.lines if "SIGKILL" in line and "goes on from its checkpoint" in line]) == 2
    folder = plan.runs[0].folder
    assert stable(folder, "work") == stable(unbroken / folder.name, "work")
    assert weights(folder) == weights(unbroken / folder.name)


def test_a_worker_that_dies_again_and_again_has_failed(file: Path, tmp_path: Path) -> None:
    _, results, watcher = killed(file, tmp_path, times=9, retries=1)
    assert [result.status for result in results] == ["failed"]
    assert watcher.killed == 2
    assert results[0].reason == "its process was ended by SIGKILL (tried 2 times)"


def test_two_grids_do_not_share_a_folder_at_a_time(tmp_path: Path) -> None:
    plan = make_plan(Grid.model_validate({"methods": ["simplecil"]}), tmp_path)

    class Second(Quiet):
        def begin(self, done: int, total: int) -> None:
            with pytest.raises(DuctworkError, match="another grid"):
                bench(plan, LocalExecutor(1), Quiet())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench(plan, LocalExecutor(1), Second())
    assert title(plan.runs[0].config) == "simplecil on demo seed 1993"
