"""``ductwork report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders that hold runs, at any depth.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    files: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also write tables as HTML, Markdown, LaTeX, CSV, figures as SVG, PNG."),
    ] = None,
) -> None:
    """Write one self-contained page with the tables and figures of any set of runs."""
    from ductwork.report import build

    print(build(folders, out, files))
