"""``ductwork demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("ductwork-demo"),
    methods: Annotated[str, typer.Option(help="Methods to compare, separated by commas.")] = "finetune,simplecil,duct",
    order: Annotated[
        str | None, typer.Option(help="Order of the domains: a number, or names separated by commas.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything that is drawn.")] = 1993,
) -> None:
    """See a model forget, one that never adapted, and DUCT, in a few minutes.

    Five looks of the ten digits are learned one after another with a small backbone. Both come with the package.
    The same command again goes on where it was interrupted.
    """
    from ductwork.cli.bench import say_failures
    from ductwork.cli.terminal import results_table
    from ductwork.experiments.bench import bench
    from ductwork.experiments.demo import demo as plan_demo
    from ductwork.experiments.executors.local import LocalExecutor
    from ductwork.experiments.watch import for_terminal
    from ductwork.methods import registry
    from ductwork.report import build

    names = [name.strip() for name in methods.split(",") if name.strip()]
    plan = plan_demo(out, methods=names, order=order, seed=seed)
    executor = LocalExecutor(runs=len(plan.tasks))
    for name in names:
        print(f"{name}: {registry.find(name).summary}")
    with for_terminal() as watcher:
        results = bench(plan, executor, watcher)
    done = [result for result in results if result.status == "done"]
    results_table(done)
    say_failures(plan, results)
    print(f"report: {build([out], out / 'report.html').resolve().as_uri()}")
    if len(done) < len(results):
        raise typer.Exit(1)
