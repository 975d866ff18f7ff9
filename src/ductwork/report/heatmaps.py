"""Heat maps: the accuracy matrix, tables of transport, the transport plan. Vector cells, one path for each shade."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ductwork.report import style
from ductwork.report.aggregate import Matrix
from ductwork.report.figures import THIRD
from ductwork.report.parts import Canvas, Panel, round_numbers, si
from ductwork.report.style import styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Values = Sequence[Sequence[float | None]]
SHADES = 40
# Beyond these, cells are narrower than a number or a name, and numbers or names are left out.
MOST_NUMBERS, MOST_NAMES, MOST_CELLS = 9, 26, 60


@styled
def matrix(
    values: Matrix,
    title: str,
    colour: str | None,
    span: tuple[float, float],
    digits: int = 1,
    clear: bool = False,
    axes: tuple[str, str] | None = None,
) -> Figure:
    """Rows: after learning a domain; columns: tested on a domain; blank where it has not been seen.

    ``clear`` shades from transparent, for numbers that are not accuracies; ``axes`` names rows and columns.
    """
    rows, columns = len(values.rows), len(values.columns)
    left = min(max(style.text_width(name) for name in values.rows) + 8, 78.0) if rows <= MOST_NAMES else 4.0
    cell = min((THIRD - left - 4) / columns, 54.0)
    step = min(max(cell * 0.6, 3.0), 22.0) if columns > MOST_NUMBERS else 21.0
    names = list(values.columns) if columns <= MOST_NAMES else []
    tilted = any(style.text_width(name) > cell - 3 for name in names)
    if tilted:  # The last name leans over the right edge.
        names = [style.shorten(name, 52) for name in names]
        cell = min(cell, (THIRD - left - 6 - 0.71 * style.text_width(names[-1])) / (columns - 0.5))
    top = 22 + (max(style.text_width(name) for name in names) * 0.71 + 8 if tilted else 14.0 if names else 2.0)
    canvas = Canvas(THIRD, top + step * rows + 3)
    panel = Panel(canvas, left, 2, cell * columns, step * rows, (0, columns), (rows, 0))
    _cells(panel, values.values, span, 0.55 if clear else 0.0)
    if columns <= MOST_NUMBERS:
        _numbers(panel, values.values, None if clear else span, digits, style.SMALL if cell >= 25 else 6.5)
    if rows <= MOST_NAMES:
        panel.names_left(values.rows, [i + 0.5 for i in range(rows)])
    panel.names_top(names, [i + 0.5 for i in range(len(names))], 45 if tilted else 0)
    canvas.heading(title, colour, f"{axes[0]} ↓  {axes[1]} →" if axes else "")
    return canvas.figure


@styled
def colour_bar(span: tuple[float, float], label: str, clear: bool = False) -> Figure:
    """The scale that heat maps share; ``clear`` for transport plans, where nothing is transparent."""
    canvas = Canvas(THIRD, 42)
    panel = Panel(canvas, 8, 16, THIRD - 16, 9, (0, SHADES), (1, 0))
    _cells(
        panel,
        [[span[0] + (span[1] - span[0]) * (i + 0.5) / SHADES for i in range(SHADES)]],
        span,
        1.0 if clear else 0.0,
    )
    ticks = round_numbers(*span, 5)
    panel.names_below([si(v) for v in ticks], [SHADES * (v - span[0]) / (span[1] - span[0]) for v in ticks], 8)
    canvas.text(8, 33, label, colour=style.MUTED)
    return canvas.figure


@styled
def plan(values: Sequence[Sequence[float]], sources: Sequence[str], targets: Sequence[str], title: str) -> Figure:
    """Where the mass of each class (row) goes (columns), as a share of the row's mass; under 1 % is not drawn."""
    shares = [[_share(v, row) for v in row] for row in values]
    rows, columns = len(sources), len(targets)
    few = rows <= MOST_NAMES
    left = min(max(style.text_width(n) for n in sources) + 8, 70.0) if few else 4.0
    step = min((THIRD - left - 4) / columns, (THIRD - left - 4) / rows, 26.0)
    names = [style.shorten(n, 62) for n in targets] if columns <= MOST_NAMES else []
    widest = max((style.text_width(n) for n in names), default=0.0)
    tilted = widest > step - 2
    top = 20 + (widest + 8 if tilted else 16.0 if names else 2.0)
    canvas = Canvas(THIRD, top + step * rows + 3)
    panel = Panel(canvas, left, 2, step * columns, step * rows, (0, columns), (rows, 0))
    panel.canvas.box(panel.left, panel.bottom, panel.right - panel.left, panel.top - panel.bottom, style.FAINT)
    _cells(panel, shares, (0.0, 1.0), 1.0)
    if few:
        panel.names_left(sources, [i + 0.5 for i in range(rows)])
    panel.names_top(names, [i + 0.5 for i in range(len(names))], 90 if tilted else 0)
    canvas.heading(title)
    return canvas.figure


def shade(value: float, span: tuple[float, float]) -> int:
    """Which of the shades a value has."""
    fraction = (value - span[0]) / (span[1] - span[0]) if span[1] > span[0] else 1.0
    return min(max(int(fraction * SHADES), 0), SHADES - 1)


def _share(value: float, row: Sequence[float]) -> float | None:
    total = math.fsum(v for v in row if math.isfinite(v))
    share = value / total if total > 0 and math.isfinite(value) else 0.0
    return share if share >= 0.01 else None


def _cells(panel: Panel, values: Values, span: tuple[float, float], strength: float = 0.0) -> None:
    """A path for each shade; opaque, or with ``strength`` one colour from transparent to that opacity."""
    import numpy as np
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    by_shade: dict[int, list[tuple[float, float]]] = {}
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            if value is not None and math.isfinite(value):
                by_shade.setdefault(shade(value, span), []).append((panel.x(j), panel.y(i + 1)))
    width, height = panel.x(1) - panel.x(0), panel.y(0) - panel.y(1)
    square = np.array([(0, 0), (width, 0), (width, height), (0, height), (0, 0)])
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
    for number, corners in sorted(by_shade.items()):
        path = Path((np.array(corners)[:, None] + square).reshape(-1, 2), codes * len(corners))
        look = (
            {"facecolor": style.STRONG, "alpha": strength * (number + 1) / SHADES}
            if strength
            else {"facecolor": _colour(number)}
        )
        panel.canvas.add(PathPatch(path, gid=style.CRISP, **look))


def _numbers(panel: Panel, values: Values, span: tuple[float, float] | None, digits: int, size: float) -> None:
    """Numbers in cells: black or white on opaque cells of ``span``, the ink of the page on clear ones."""
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            if value is None or not math.isfinite(value):
                continue
            panel.canvas.text(
                panel.x(j + 0.5),
                panel.y(i + 0.5),
                f"{value:.{digits}f}",
                "center",
                size,
                style.INK if span is None else _legible(shade(value, span)),
            )


def _legible(number: int) -> str:
    """Whichever of black and white has more contrast on a shade, by the WCAG's relative luminance."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in _rgb(number)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return style.ON_DARK if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.056 else style.ON_LIGHT


@functools.cache
def _rgb(number: int) -> tuple[float, float, float]:
    import matplotlib

    red, green, blue, _ = matplotlib.colormaps["viridis"](0.08 + 0.88 * (number + 0.5) / SHADES)
    return float(red), float(green), float(blue)


def _colour(number: int) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in _rgb(number))
