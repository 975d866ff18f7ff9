"""What a page is made of: chapters, sections, and blocks of text, tables and pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ductwork.report import style
from ductwork.report.aggregate import Group, Variant
from ductwork.report.collect import Run
from ductwork.report.files import Files
from ductwork.report.tables import Table

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure

# The paper's twelve methods, and joint training.
MOST_LINES = 13


@dataclass(frozen=True)
class Picture:
    """Inline SVG, and a second drawing for narrow windows when one size does not fit both."""

    wide: Markup
    narrow: Markup | None = None


@dataclass(frozen=True)
class Block:
    """A paragraph, a table, or pictures side by side; ``folded`` blocks are shown on request."""

    caption: str = ""
    table: Table | None = None
    pictures: tuple[Picture, ...] = ()
    folded: str = ""


@dataclass(frozen=True)
class Section:
    id: str
    title: str
    lead: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Chapter:
    """Everything about one group of runs."""

    id: str
    title: str
    backbone: str
    sentence: str
    notes: tuple[str, ...]
    sections: tuple[Section, ...]


@dataclass(frozen=True)
class Provenance:
    """Where the numbers of one run come from: names and values, in order."""

    title: str
    status: str
    facts: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Page:
    """``before`` and ``after`` the chapters stand sections about all of them together."""

    title: str
    summary: str
    warnings: tuple[str, ...]
    unfinished: tuple[tuple[str, str, str], ...]
    before: tuple[Section, ...]
    chapters: tuple[Chapter, ...]
    after: tuple[Section, ...]
    provenance: tuple[Provenance, ...]
    swatches: dict[str, str]


@dataclass
class Context:
    """What the builders of sections share: the group, its colours, and a counter that keeps ids of pictures apart."""

    group: Group
    palette: style.Palette
    prefix: str
    panels: int = MOST_LINES
    files: Files | None = None
    _count: int = field(default=0)

    @property
    def lines(self) -> tuple[Variant, ...]:
        return self.group.first_of_methods(MOST_LINES)

    @property
    def multiples(self) -> tuple[Variant, ...]:
        return self.group.first_of_methods(self.panels)

    def left_out(self, shown: Sequence[Variant]) -> str:
        """A sentence for the caption when a figure does not have room for everything."""
        missing = len(self.group.drawn) - len(shown)
        return (
            f" The {len(shown)} best are drawn, first of all one of each method; "
            f"{missing} more {'is' if missing == 1 else 'are'} in the table."
            if missing > 0
            else ""
        )

    def picture(self, label: str, figure: Figure, narrow: Figure | None = None, *, name: str) -> Picture:
        """``label`` says in words what is to be seen, ``name`` what a file of the figure is called."""
        if self.files is not None:
            self.files.figure(name, figure)
        return Picture(self._svg(figure, label), self._svg(narrow, label) if narrow is not None else None)

    def _svg(self, figure: Figure, label: str) -> Markup:
        from markupsafe import Markup

        self._count += 1
        # The drawing library escapes the text of a figure, and style.svg escapes the label.
        return Markup(style.svg(figure, f"{self.prefix}{self._count}", label))


def in_words(order: Iterable[str]) -> str:
    return " → ".join(order)


def how_many(count: int, one: str) -> str:
    return f"{count} {one}" if count == 1 else f"{count} {one}s"


def same_order(runs: Sequence[Run]) -> str:
    """``the mean of 3 runs`` or ``one run``, for captions."""
    return "one run" if len(runs) == 1 else f"the mean of {len(runs)} runs"
