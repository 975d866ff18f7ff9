"""What a grid comes to: which runs there are, which are done, which are left, and how long those may take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ductwork.errors import CheckpointError, ConfigError, GridError
from ductwork.experiments.checks import Inspected, inspect
from ductwork.experiments.config import RunConfig
from ductwork.experiments.executors import Task
from ductwork.experiments.grid import Grid, expand
from ductwork.experiments.results import RESULT_FILE, RunResult, read_result
from ductwork.experiments.watch import title
from ductwork.validation import validate

State = Literal["done", "failed", "not-applicable", "left"]
SHARED = "shared"


@dataclass(frozen=True)
class Planned:
    """One run of a grid."""

    config: RunConfig
    folder: Path
    state: State
    reason: str | None = None
    task: Task | None = None
    """What to do, for a run that is left."""
    seconds: float | None = None
    """How long a run that is left may take from now on, where anything is known about that."""
    blank: RunResult | None = None


@dataclass(frozen=True)
class Plan:
    """All runs of a grid, in their order."""

    out: Path
    runs: tuple[Planned, ...]

    def of(self, state: State) -> list[Planned]:
        return [run for run in self.runs if run.state == state]

    @property
    def tasks(self) -> list[Task]:
        return [run.task for run in self.runs if run.task is not None]

    def seconds(self, jobs: int) -> tuple[float, int]:
        """Estimated time of what is left with so many runs at a time, and of how many runs nothing is known."""
        known = [run.seconds for run in self.of("left") if run.seconds is not None]
        unknown = len(self.of("left")) - len(known)
        return max([sum(known) / max(1, min(jobs, len(known))), *known], default=0.0), unknown


def make_plan(grid: Grid, out: Path, *, retry_failed: bool = False) -> Plan:
    """Expand a grid, look at what is there and check what is left. A GridError says all that is wrong.

    Finished runs are recognised by the name of their folder, whichever grid they were part of.
    """
    configs = _configs(expand(grid))
    folders = [out / config.name() for config in configs]
    results, problems = _results(folders)
    if problems:
        raise GridError(problems)
    ended = {"done"} if retry_failed else {"done", "failed"}
    open_ = [c for c, r in zip(configs, results, strict=True) if r is None or r.status not in ended]
    inspected = {run.config.name(): run for run in inspect(open_)}
    history = [result for result in _history(out) if result.status == "done"]
    runs = []
    for number, (config, folder, result) in enumerate(zip(configs, folders, results, strict=True), start=1):
        run = inspected.get(config.name())
        if run is None:
            assert result is not None
            runs.append(Planned(config, folder, "done" if result.status == "done" else "failed", result.reason))
        elif run.obstacle is not None:
            runs.append(Planned(config, folder, "not-applicable", run.obstacle, blank=run.blank))
        else:
            task = Task(number=number, config=_sharing(config, out), folder=folder.absolute(), blank=run.blank)
            left = _estimate(run, history)
            left = None if left is None else max(0.0, left - (result.seconds if result is not None else 0.0))
            runs.append(Planned(config, folder, "left", task=task, seconds=left))
    return Plan(out, tuple(runs))


def _configs(expanded: Sequence[dict[str, object]]) -> list[RunConfig]:
    problems: list[str] = []
    configs: dict[str, RunConfig] = {}
    for values in expanded:
        try:
            config = validate(RunConfig, values, f"{values.get('method')} on {values.get('stream')}")
        except ConfigError as error:
            problems += error.problems
            continue
        if config.name() in configs:
            problems.append(f"{title(config)} is in the grid twice")
        configs[config.name()] = config
    if problems:
        raise GridError(problems)
    return list(configs.values())


def _results(folders: Iterable[Path]) -> tuple[list[RunResult | None], list[str]]:
    results: list[RunResult | None] = []
    problems = []
    for folder in folders:
        try:
            results.append(read_result(folder) if (folder / RESULT_FILE).exists() else None)
        except CheckpointError as error:
            problems.append(f"{error}; delete {folder} to do the run again")
    return results, problems


def _history(out: Path) -> list[RunResult]:
    """All results below ``out``; what cannot be read says nothing about time."""
    results, _ = _results(sorted(path.parent for path in out.glob(f"*/{RESULT_FILE}")))
    return [result for result in results if result is not None]


def _sharing(config: RunConfig, out: Path) -> RunConfig:
    """The run with a folder for what the runs of a grid share, unless it was given another one or none."""
    if config.engine.shared is not None:
        return config
    engine = config.engine.model_copy(update={"shared": out.absolute() / SHARED})
    return config.model_copy(update={"engine": engine})


def _estimate(run: Inspected, history: Sequence[RunResult]) -> float | None:
    """Seconds, from runs of the same method on the same backbone: the most similar ones that there are.

    Time goes with training images and epochs; on the same stream with the same settings these are the same.
    """
    blank = run.blank
    alike = [r for r in history if (r.method, r.backbone.name) == (blank.method, blank.backbone.name)]
    on_stream = [r for r in alike if r.stream == blank.stream]
    same = [r for r in on_stream if r.params == blank.params]
    known = same or on_stream or alike
    rates = [r.seconds / (_images(r) * _epochs(r)) for r in known if _images(r)]
    return sum(rates) / len(rates) * run.images * _epochs(blank) if rates else None


def _images(result: RunResult) -> int:
    return sum(stage.n_train for stage in result.stages)


def _epochs(result: RunResult) -> float:
    return max(1.0, float(result.params.get("epochs", 1)))
