"""Tables and figures as files of their own, for a paper: HTML, Markdown, LaTeX and CSV; SVG and PNG."""

from __future__ import annotations

import io
import os
import re
import tempfile
import unicodedata
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from ductwork.report.tables import Table
from ductwork.report.writers import WRITERS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DOTS_PER_INCH, _MARGIN = 200, 0.06


class Files:
    """A folder that figures and tables are written to, each under its name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written: list[Path] = []
        self._names: Counter[tuple[str, str]] = Counter()

    def below(self, name: str) -> Files:
        """A folder in this one; what is written there counts here, too."""
        inner = Files(self.folder / slug(name))
        inner.written = self.written
        return inner

    def figure(self, name: str, figure: Figure) -> None:
        # Imported here: a page without files shall not wait for it.
        from matplotlib.transforms import Bbox

        stem = self._stem("figure", name)
        width, height = figure.get_size_inches()
        frame = Bbox.from_extents(-_MARGIN, -_MARGIN, width + _MARGIN, height + _MARGIN)
        figure.patch.set_visible(True)  # in the page figures are transparent
        for kind, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):
            buffer = io.BytesIO()
            figure.savefig(
                buffer, format=kind, dpi=_DOTS_PER_INCH, facecolor="white", bbox_inches=frame, metadata=metadata
            )
            self._write(f"{stem}.{kind}", buffer.getvalue())
        figure.patch.set_visible(False)

    def table(self, table: Table) -> None:
        stem = self._stem("table", table.title)
        for kind, writer in WRITERS.items():
            self._write(f"{stem}.{kind}", writer(table).encode("utf-8"))

    def _stem(self, kind: str, name: str) -> str:
        """A file name that no other figure, or no other table, of this folder has."""
        stem = slug(name)
        self._names[kind, stem] += 1
        count = self._names[kind, stem]
        return stem if count == 1 else f"{stem}-{count}"

    def _write(self, name: str, content: bytes) -> None:
        path = self.folder / name
        write(path, content)
        self.written.append(path)


def slug(name: str) -> str:
    """Small letters, digits and dashes that stand for a name."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9.]+", "-", plain).strip("-.")[:80] or "unnamed"


def write(out: Path, content: bytes) -> None:
    """Beside, fsync, rename: a reader sees the old file or the new one, never a part."""
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.is_dir():
        raise IsADirectoryError(None, "it is a folder; name a file, such as report.html")
    descriptor, beside = tempfile.mkstemp(prefix=f".{out.name}.", dir=out.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(beside, 0o644)
        os.replace(beside, out)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise
