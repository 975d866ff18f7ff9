"""One self-contained HTML page from any set of runs, written atomically."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ductwork.errors import DuctworkError
from ductwork.report import style
from ductwork.report.collect import Scan, scan
from ductwork.report.files import write

if TYPE_CHECKING:
    from jinja2 import Environment


def build(paths: Sequence[Path], out: Path, files: Path | None = None) -> Path:
    """Report on every run under ``paths`` in the file ``out``; the same runs give the same bytes.

    With a folder ``files``, every table is written there as HTML, Markdown, LaTeX and CSV, every figure as SVG and PNG.
    """
    found, out = scan(paths), Path(out)
    try:
        html = render(found, files)
        write(out, html.encode("utf-8"))
    except OSError as error:
        where = error.filename or out
        raise DuctworkError(f"{where} cannot be written: {error.strerror or error}") from None
    return out


def render(found: Scan, files: Path | None = None) -> str:
    """The page as text."""
    from ductwork.report.files import Files
    from ductwork.report.sections import report

    with style.house():
        content = report(found, Files(Path(files)) if files is not None else None)
        light, dark = style.css_variables()
        template = _environment().get_template("report.html.j2")
        return template.render(page=content, light=light, dark=dark) + "\n"


def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("ductwork.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # HTML knows no control characters, and a name from a folder may hold one.
    environment.finalize = lambda value: style.clean(value) if type(value) is str else value
    return environment
