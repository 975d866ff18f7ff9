"""One self-contained HTML page from any set of runs, written atomically."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ductwork.errors import DuctworkError
from ductwork.report import style
from ductwork.report.collect import Scan, scan

if TYPE_CHECKING:
    from jinja2 import Environment


def build(paths: Sequence[Path], out: Path) -> Path:
    """Report on every run under ``paths`` in the file ``out``; the same runs give the same bytes."""
    html = render(scan(paths))
    out = Path(out)
    try:
        _write(out, html)
    except OSError as error:
        raise DuctworkError(f"{out} cannot be written: {error.strerror or error}") from None
    return out


def render(found: Scan) -> str:
    """The page as text."""
    from ductwork.report.sections import report

    with style.house():
        content = report(found)
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


def _write(out: Path, text: str) -> None:
    """Beside, fsync, rename: a reader sees the old page or the new one, never a part."""
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.is_dir():
        raise IsADirectoryError(None, "it is a folder; name a file, such as report.html")
    descriptor, beside = tempfile.mkstemp(prefix=f".{out.name}.", dir=out.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(beside, 0o644)
        os.replace(beside, out)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise
