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
    """
    from ductwork.cli.terminal import results_table, watched
    from ductwork.experiments.demo import demo as run_demo
    from ductwork.report import build

    names = [name.strip() for name in methods.split(",") if name.strip()]
    with watched() as progress:
        results = run_demo(out, methods=names, order=order, seed=seed, progress=progress)
    results_table(results)
    print(f"report: {build([out], out / 'report.html').resolve().as_uri()}")
