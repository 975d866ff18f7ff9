"""``ductwork bench``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ductwork.experiments.executors import Executor
    from ductwork.experiments.plan import Plan
    from ductwork.experiments.results import RunResult

_STATES = ("done", "failed", "not-applicable", "left")


class Engine(StrEnum):
    """Where runs are done."""

    local = "local"
    ray = "ray"


def bench(
    grid: Annotated[Path, typer.Argument(metavar="GRID.yaml", help="Methods, streams, orders, seeds, parameters.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Keys of the grid, or settings of every run: params.epochs=5."),
    ] = None,
    engine: Annotated[Engine, typer.Option(help="Where runs are done.")] = Engine.local,
    out: Annotated[Path | None, typer.Option(help="Folder of all runs; default runs/<name of the grid>.")] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; default one a GPU, or what the processors carry.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything and say what would be done.")] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Also do what has failed before.")] = False,
    retries: Annotated[int, typer.Option(min=0, help="How often a run goes on whose process died.")] = 3,
    address: Annotated[
        str | None, typer.Option(help="Ray: an existing cluster, HOST:PORT or auto; default one is started here.")
    ] = None,
    cpus: Annotated[int | None, typer.Option(min=1, help="Ray: processors of each run; default 1.")] = None,
    gpus: Annotated[float | None, typer.Option(min=0, help="Ray: GPUs of each run, also a share of one.")] = None,
    memory: Annotated[float | None, typer.Option(min=0, help="Ray: GB of memory of each run; default 4.")] = None,
) -> None:
    """Do many runs: methods x streams x orders x seeds x backbones x parameters.

    Everything is checked before anything starts. The same command again goes on with what is left: a finished run is
    never done twice, and a failed one does not stop the others.
    """
    from ductwork.experiments.bench import bench as do
    from ductwork.experiments.grid import load_grid
    from ductwork.experiments.plan import make_plan
    from ductwork.experiments.watch import for_terminal

    places = {"address": address, "cpus": cpus, "gpus": gpus, "memory": memory}
    on_ray = _ray_options(engine, {name: value for name, value in places.items() if value is not None})
    folder = out or Path("runs") / grid.stem
    plan = make_plan(load_grid(grid, settings or []), folder, retry_failed=retry_failed)
    executor = _executor(engine, plan, jobs, on_ray)
    try:
        _say_plan(plan, executor, whole=dry_run)
        if dry_run or (not plan.tasks and not plan.of("not-applicable")):
            raise typer.Exit(1 if plan.of("failed") and not dry_run else 0)
        with for_terminal() as watcher:
            results = do(plan, executor, watcher, retries=retries)
    finally:
        executor.stop()
    say_failures(plan, results)
    print(f"{len(results)} runs in {plan.out}: {_counted([result.status for result in results])}")
    if any(result.status == "failed" for result in results):
        raise typer.Exit(1)


def _ray_options(engine: Engine, given: dict[str, Any]) -> dict[str, Any]:
    """What was said about Ray, checked before anything takes time."""
    from ductwork.errors import ConfigError
    from ductwork.validation import require

    if engine is Engine.ray:
        require("ray", "cluster", "--engine ray")
    elif given:
        raise ConfigError(f"--{next(iter(given))} is for --engine ray; add it, or leave --{next(iter(given))} out")
    if "memory" in given:
        given["memory"] = int(given["memory"] * 2**30)
    return given


def _executor(engine: Engine, plan: Plan, jobs: int | None, on_ray: dict[str, Any]) -> Executor:
    on_processors = all(task.config.engine.accelerator == "cpu" for task in plan.tasks)
    if engine is Engine.ray and plan.tasks:
        from ductwork.experiments.executors.ray import RayExecutor

        return RayExecutor(jobs=jobs, on_processors=on_processors, **on_ray)
    from ductwork.experiments.executors.local import LocalExecutor

    return LocalExecutor(jobs, on_processors=on_processors, runs=len(plan.tasks))


def _say_plan(plan: Plan, executor: Executor, *, whole: bool) -> None:
    from ductwork.cli.terminal import table
    from ductwork.experiments.watch import clock, title

    left = len(plan.of("left"))
    print(f"{len(plan.runs)} runs in {plan.out}: {_counted([run.state for run in plan.runs])}")
    if whole:
        rows: dict[tuple[str, str, str], Counter[str]] = {}
        for run in plan.runs:
            config = run.config
            method = config.method if config.recipe == "default" else f"{config.method}/{config.recipe}"
            rows.setdefault((config.stream, config.backbone, method), Counter())[run.state] += 1
        head = ["stream", "backbone", "method", "runs", *(state.replace("-", " ") for state in _STATES)]
        table(head, [[*what, str(n.total()), *(str(n[state]) for state in _STATES)] for what, n in rows.items()])
    for run in [*plan.of("failed"), *plan.of("not-applicable")]:
        print(f"{run.state.replace('-', ' ')}: {title(run.config)}: {run.reason}")
    if plan.of("failed"):
        print("what has failed is left alone; --retry-failed does it again")
    if left:
        seconds, unknown = plan.seconds(executor.jobs)
        about = "unknown" if unknown == left else f"about {clock(seconds)}"
        more = f", and {unknown} runs of which nothing is known" if 0 < unknown < left else ""
        print(f"time left: {about}{more}, with {executor.about}")


def say_failures(plan: Plan, results: Sequence[RunResult]) -> None:
    """Name the runs of a plan that did not end well, and why."""
    from ductwork.experiments.watch import outcome, title

    for run, result in zip(plan.runs, results, strict=True):
        if result.status == "failed":
            print(f"{title(run.config)}: {outcome(result)}")


def _counted(states: Sequence[str]) -> str:
    return ", ".join(f"{states.count(s)} {s.replace('-', ' ')}" for s in _STATES if s in states)
