"""``ductwork run``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def run(
    config: Annotated[
        Path | None, typer.Argument(help="YAML file of a run; key=value alone runs on the defaults.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings on top, e.g. params.epochs=5 order=2."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; default runs/<name>.")] = None,
    root: Annotated[
        str | None, typer.Option(help="Where the download of a named stream lies; the same as root=DIR.")
    ] = None,
    increment: Annotated[int | None, typer.Option(help="Class-incremental: so many classes a stage.")] = None,
    devices: Annotated[
        int | None, typer.Option(help="Processes on this machine, one device each; the same as engine.devices=N.")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(help="Machines, on each of which torchrun starts this; the same as engine.nodes=N.")
    ] = None,
) -> None:
    """Run one method on one stream in one order with one seed.

    The same command again resumes the run where it was interrupted, or says that it is done.
    """
    from ductwork.cli.terminal import result_line, watched
    from ductwork.experiments.config import load_config
    from ductwork.experiments.results import is_done
    from ductwork.experiments.run import run as run_it

    pairs = list(settings or [])
    if config is not None and "=" in str(config):  # no file was given, only settings
        pairs, config = [str(config), *pairs], None
    options = {"root": root, "increment": increment, "engine.devices": devices, "engine.nodes": nodes}
    pairs += [f"{key}={value}" for key, value in options.items() if value is not None]
    loaded = load_config(config, pairs)
    folder = out or Path("runs") / loaded.name()
    done = is_done(folder)
    with watched() as progress:
        result = run_it(loaded, folder, progress=progress)
    if os.environ.get("RANK", "0") == "0":  # of the processes that torchrun started one speaks
        print(*(["already done: nothing to run"] if done else []), result_line(result), folder, sep="\n")
