"""``ductwork run``."""

from __future__ import annotations

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
    pairs += [f"{key}={value}" for key, value in {"root": root, "increment": increment}.items() if value is not None]
    loaded = load_config(config, pairs)
    folder = out or Path("runs") / loaded.name()
    if is_done(folder):
        print("already done: nothing to run")
    with watched() as progress:
        result = run_it(loaded, folder, progress=progress)
    print(result_line(result))
    print(f"{folder}")
