"""Parts of figures: panels measured in points, names and scales along them, titles, legends.

Panels stand in for matplotlib's axes, whose ticks and spines take several times as long to make and draw as all that a
small figure shows. Positions are points from the lower left corner, at any resolution that a figure is saved in.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ductwork.report import style

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure
    from matplotlib.text import Text
    from matplotlib.transforms import Transform

Align = Literal["left", "center", "right"]


@functools.cache
def _label_class() -> type[Text]:
    from matplotlib.text import Text

    class Label(Text):
        """One line on its baseline. SVG leaves the setting of type to the reader's machine, so measuring it first,
        which takes most of the time of a figure, is left out; other formats go the usual way."""

        def draw(self, renderer: Any) -> None:
            if not hasattr(renderer, "writer"):
                super().draw(renderer)
                return
            x, y = self.get_transform().transform(self.get_unitless_position())
            context = renderer.new_gc()
            context.set_foreground(self.get_color())
            renderer.draw_text(
                context,
                x,
                renderer.height - y,
                self.get_text(),
                self.get_fontproperties(),
                self.get_rotation(),
                ismath=False,
                mtext=self,
            )
            context.restore()

    return Label


class Canvas:
    """A figure of ``width`` x ``height`` points, to which lines, areas and texts are added in points."""

    def __init__(self, width: float, height: float) -> None:
        from matplotlib.figure import Figure
        from matplotlib.transforms import Affine2D

        self.width, self.height = width, height
        self.figure: Figure = Figure(figsize=(width / 72, height / 72), dpi=72)
        self.figure.patch.set_visible(False)
        self._points: Transform = Affine2D().scale(1 / 72) + self.figure.dpi_scale_trans

    def add(self, artist: Artist) -> None:
        artist.set_transform(self._points)
        self.figure.add_artist(artist)

    def line(self, xs: Sequence[float], ys: Sequence[float], colour: str, width: float = 1.0, **look: Any) -> None:
        from matplotlib.lines import Line2D

        self.add(Line2D(xs, ys, color=colour, linewidth=width, **look))

    def lines(self, segments: Sequence[Sequence[tuple[float, float]]], colour: str) -> None:
        """Thin straight lines, as one artist."""
        from matplotlib.patches import PathPatch
        from matplotlib.path import Path

        if segments:
            path = Path.make_compound_path(*(Path(list(segment)) for segment in segments))
            self.add(PathPatch(path, facecolor="none", edgecolor=colour, linewidth=0.8))

    def area(self, corners: Sequence[tuple[float, float]], colour: str, **look: Any) -> None:
        from matplotlib.patches import Polygon

        self.add(Polygon(list(corners), closed=True, facecolor=colour, **look))

    def box(self, x: float, y: float, width: float, height: float, colour: str, **look: Any) -> None:
        self.area([(x, y), (x + width, y), (x + width, y + height), (x, y + height)], colour, **look)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        align: Align = "left",
        size: float = style.SMALL,
        colour: str = style.INK,
        bold: bool = False,
        rotation: float = 0.0,
    ) -> None:
        """Text whose small letters and digits are centred on ``y``."""
        # A baseline is the same for every text; the middle of its box would depend on its letters.
        angle, drop = math.radians(rotation), 0.36 * size
        self.add(
            _label_class()(
                x + drop * math.sin(angle),
                y - drop * math.cos(angle),
                text,
                size=size,
                color=colour,
                horizontalalignment=align,
                verticalalignment="baseline",
                rotation=rotation,
                rotation_mode="anchor",
                fontweight="bold" if bold else "normal",
            )
        )

    def heading(self, text: str, colour: str | None = None, note: str = "") -> None:
        """The title: a square in the method's colour, its name, and a quiet remark."""
        y, start = self.height - 7.5, 0.0
        if colour is not None:
            self.box(1, y - 3.5, 7, 7, colour)
            start = 12.0
        room = self.width - start - (style.text_width(note) + 10 if note else 2)
        shown = style.shorten(text, max(room, 60) / 1.12, style.SIZE)
        self.text(start, y, shown, size=style.SIZE, bold=True)
        if note:
            at = start + style.text_width(shown, style.SIZE, bold=True) + 8
            self.text(at, y, style.shorten(note, self.width - at), colour=style.MUTED)

    def legend(self, colours: Mapping[str, str], y: float) -> None:
        """Squares and names in a row, wrapped where the figure ends."""
        for (name, colour), (x, row) in zip(colours.items(), _flow(list(colours), self.width), strict=True):
            self.box(x, y - 13 * row - 3.5, 7, 7, colour, edgecolor=style.MUTED, linewidth=0.5)
            self.text(x + 11, y - 13 * row, style.shorten(name, 90), colour=style.MUTED)


class Panel:
    """A rectangle of a canvas with scales: maps data to points."""

    def __init__(
        self,
        canvas: Canvas,
        left: float,
        bottom: float,
        width: float,
        height: float,
        xs: tuple[float, float],
        ys: tuple[float, float],
        log: bool = False,
    ) -> None:
        self.canvas = canvas
        self.left, self.bottom, self.right, self.top = left, bottom, left + width, bottom + height
        self.xs, self.ys, self.log = xs, ys, log

    def x(self, value: float) -> float:
        low, high = self.xs
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return self.left + (self.right - self.left) * (value - low) / (high - low)

    def y(self, value: float) -> float:
        low, high = self.ys
        return self.bottom + (self.top - self.bottom) * (value - low) / (high - low)

    def points(self, pairs: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
        return [self.x(x) for x, _ in pairs], [self.y(y) for _, y in pairs]

    def line(self, pairs: Sequence[tuple[float, float]], colour: str, width: float = 1.0, **look: Any) -> None:
        self.canvas.line(*self.points(pairs), colour, width, **look)

    def dots(
        self, pairs: Sequence[tuple[float, float]], colour: str, marker: str = "o", size: float = 6.0, **look: Any
    ) -> None:
        self.canvas.line(*self.points(pairs), colour, marker=marker, markersize=size, linestyle="", **look)

    def names_left(self, names: Sequence[str], at: Sequence[float], colour: str = style.MUTED) -> None:
        """Names of rows, shortened to the room left of the panel."""
        for name, y in zip(names, at, strict=True):
            self.canvas.text(self.left - 5, self.y(y), style.shorten(name, self.left - 5), "right", colour=colour)

    def names_below(self, names: Sequence[str], at: Sequence[float], drop: float = 10) -> None:
        for name, x in zip(names, at, strict=True):
            self.canvas.text(self.x(x), self.bottom - drop, name, "center", colour=style.MUTED)

    def names_top(self, names: Sequence[str], at: Sequence[float], rotation: Literal[0, 45, 90] = 0) -> None:
        for name, x in zip(names, at, strict=True):
            self.canvas.text(
                self.x(x),
                self.top + (8 if not rotation else 5),
                name,
                "center" if not rotation else "left",
                colour=style.MUTED,
                rotation=rotation,
            )

    def scale(self, axis: Literal["x", "y"], steps: int = 5) -> None:
        """A grid at round numbers, with the numbers beside it."""
        ticks = round_numbers(*(self.xs if axis == "x" else self.ys), steps, self.log and axis == "x")
        if axis == "y":
            self.canvas.lines([[(self.left, self.y(v)), (self.right, self.y(v))] for v in ticks], style.GRID)
            self.names_left([si(v) for v in ticks], ticks)
        else:
            self.canvas.lines([[(self.x(v), self.bottom), (self.x(v), self.top)] for v in ticks], style.GRID)
            self.names_below([si(v) for v in ticks], ticks)


def round_numbers(low: float, high: float, steps: int, log: bool = False) -> list[float]:
    """At most ``steps`` or so round numbers between two."""
    low, high = min(low, high), max(low, high)
    if log:
        powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
        found = [float(10**p) for p in powers][:: max(1, len(powers) // steps)]
        return found if len(found) > 1 else [low * 1.1, high / 1.1]
    raw = (high - low) / max(steps, 1)
    size = 10 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6)
    return [round(k * step, 12) for k in range(first, last + 1)]


def legend_rows(names: Sequence[str], width: float) -> int:
    """How many rows a legend of ``names`` needs."""
    return 1 + max((row for _, row in _flow(names, width)), default=0)


def _flow(names: Sequence[str], width: float) -> list[tuple[float, int]]:
    x, row, places = 1.0, 0, []
    for name in names:
        length = 11 + style.text_width(style.shorten(name, 90))
        if x > 1 and x + length > width:
            x, row = 1.0, row + 1
        places.append((x, row))
        x += length + 12
    return places


def si(value: float) -> str:
    """``86 M``: a number short enough for an axis."""
    for limit, unit in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= limit * 0.9995:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}".replace("-", "−")


def change(value: float) -> str:
    """``+1.5``, ``−0.3``, ``0.0``: a difference in points."""
    text = f"{value:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")
