"""Figures that compare methods. Each function takes plain records and returns a matplotlib figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ductwork.report import style
from ductwork.report.aggregate import Group, Kept, Stat, Variant
from ductwork.report.layout import place, spread
from ductwork.report.parts import Canvas, Panel, change
from ductwork.report.style import Palette, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Points. The page is 1040 CSS pixels wide, a telephone about 340; a third is a small multiple, the same on both.
WIDE, NARROW, THIRD = 780.0, 255.0, 255.0
_LINES = ("-", (0, (5, 2)), (0, (1.5, 1.8)), (0, (6, 2, 1.5, 2)))
_LEADER = 22.0


@styled
def curves(group: Group, variants: Sequence[Variant], palette: Palette, narrow: bool = False) -> Figure:
    """``A_b`` after each domain: a line a method, a band of one standard deviation, labels at the ends."""
    canvas = Canvas(NARROW, 270.0) if narrow else Canvas(WIDE, 320.0)
    ends = _ends(variants, (92.0 if narrow else 190.0) - _LEADER - 6)
    right = max(style.text_width(text, bold=True) for text in ends) + _LEADER + 8
    stages = max(len(v.curve) for v in variants)
    xs = (0.75, float(stages)) if stages > 1 else (0.5, 1.5)
    panel = Panel(canvas, 28, 38, canvas.width - 28 - right, canvas.height - 60, xs, _accuracy_range(variants))
    panel.scale("y", 4 if narrow else 6)
    _stage_names(panel, group, stages)
    _curve_lines(panel, variants, palette)
    _end_labels(panel, variants, palette, ends, stages)
    canvas.text(0, canvas.height - 8, "accuracy on the domains so far, %", colour=style.MUTED)
    return canvas.figure


def _accuracy_range(variants: Sequence[Variant]) -> tuple[float, float]:
    stats = [s for v in variants for s in v.curve if s is not None]
    low, high = min((s.mean - s.std for s in stats), default=0.0), max((s.mean + s.std for s in stats), default=100.0)
    if high - low < 4:  # A few tenths of noise should not look like a mountain.
        low, high = (low + high) / 2 - 2, (low + high) / 2 + 2
    pad = (high - low) * 0.05
    return max(low - pad, -1.0), min(high + pad, 101.0)


def _curve_lines(panel: Panel, variants: Sequence[Variant], palette: Palette) -> None:
    drawn: dict[str, int] = {}
    styles = []
    for variant in variants:
        styles.append(_LINES[drawn.get(variant.method, 0) % len(_LINES)])
        drawn[variant.method] = drawn.get(variant.method, 0) + 1
    for rank, variant in reversed(list(enumerate(variants))):
        stats = [(i + 1, s) for i, s in enumerate(variant.curve) if s is not None]
        colour = palette.colour(variant.method)
        if any(s.std > 0 for _, s in stats):
            upper = [(panel.x(i), panel.y(s.mean + s.std)) for i, s in stats]
            lower = [(panel.x(i), panel.y(s.mean - s.std)) for i, s in stats]
            panel.canvas.area(upper + lower[::-1], colour, alpha=0.14 if len(variants) <= 6 else 0.09)
        panel.line(
            [(i, s.mean) for i, s in stats],
            colour,
            2.4 if variant is _best(variants) else 1.6,
            linestyle=(0, (5, 4)) if variant.only_at_the_end else styles[rank],
            marker="" if variant.only_at_the_end else palette.marker(variant.method),
            markeredgecolor=style.CARD,
            markeredgewidth=0.8,
        )


def _best(variants: Sequence[Variant]) -> Variant:
    """The best that competes."""
    return next((v for v in variants if v.competes), variants[0])


def _ends(variants: Sequence[Variant], room: float) -> list[str]:
    """``duct 86.8 (+3.2)``: the name, the last value and, for the best, the gap to the runner-up."""
    stages = max(len(v.curve) for v in variants)
    last = [v.curve[-1] if v.curve else None for v in variants]
    through = [(v, s) for v, s in zip(variants, last, strict=True) if s and len(v.curve) == stages and v.competes]
    full = sorted((s.mean for _, s in through), reverse=True)
    texts = []
    for variant, stat in zip(variants, last, strict=True):
        value = f"{stat.mean:.1f}" if stat else "NA"
        if stat and len(full) > 1 and variant in (v for v, s in through if s.mean == full[0]):
            value += f" (+{full[0] - full[1]:.1f})"
        if not variant.done:
            value += f" {variant.shown[0].result.status}"
        name = style.shorten(variant.label, max(room - style.text_width(value + "  ", bold=True), 30))
        texts.append(f"{name}  {value}")
    return texts


def _end_labels(panel: Panel, variants: Sequence[Variant], palette: Palette, texts: Sequence[str], stages: int) -> None:
    at = [(panel.x(len(v.curve)), panel.y(s.mean if (s := v.curve[-1]) else panel.ys[0])) for v in variants]
    placed = spread([y for _, y in at], style.SIZE + 3, panel.bottom, panel.top + 6)
    edge = panel.x(stages)
    for variant, text, (x, y), label in zip(variants, texts, at, placed, strict=True):
        panel.canvas.line(
            [x + 5, edge + 9, edge + _LEADER - 4, edge + _LEADER],
            [y, y, label, label],
            palette.colour(variant.method),
            0.9,
            linestyle=":" if len(variant.curve) < stages else "-",
        )
        panel.canvas.text(edge + _LEADER + 3, label, text, bold=variant is _best(variants))


def _stage_names(panel: Panel, group: Group, stages: int) -> None:
    """Names of domains when every run has the same order and there is room for them, numbers otherwise."""
    slot = (panel.right - panel.left) / stages - 5
    ticks = list(range(1, stages + 1, max(1, stages // 16)))
    if group.one_order and slot >= 34 and len(group.order) >= stages:
        panel.names_below([style.shorten(group.order[i - 1], slot) for i in ticks], ticks)
        words = "after learning domain"
    else:
        panel.names_below([str(i) for i in ticks], ticks)
        words = "number of domains learned"
    panel.canvas.text((panel.left + panel.right) / 2, panel.bottom - 27, words, "center", colour=style.MUTED)


@dataclass(frozen=True)
class Bar:
    """One row of a bar chart."""

    variant: Variant
    values: tuple[Stat | None, ...]


@styled
def bars(rows: Sequence[Bar], titles: Sequence[str], palette: Palette, narrow: bool = False) -> Figure:
    """Horizontal bars, a row for each method, a panel for each of ``titles``; whiskers are standard deviations."""
    width = NARROW if narrow else WIDE
    left = min(max(style.text_width(row.variant.label) for row in rows) + 10, 84.0 if narrow else 230.0)
    gap = 14.0 if narrow else 40.0
    breadth = (width - left - 6 - gap * (len(titles) - 1)) / len(titles)
    canvas = Canvas(width, 19.0 * len(rows) + 26)
    for number, title in enumerate(titles):
        values = [row.values[number] for row in rows]
        low, high = (
            min([0.0, *(s.mean - s.std for s in values if s)]),
            max([0.0, *(s.mean + s.std for s in values if s)]) or 1.0,
        )
        room = 30.0 / (breadth - 30.0) * (high - low)
        panel = Panel(
            canvas,
            left + number * (breadth + gap),
            2,
            breadth,
            19.0 * len(rows),
            (low - (room if low < 0 else 0.0), high + room),
            (len(rows) - 0.5, -0.5),
        )
        canvas.text(
            panel.left, canvas.height - 9, style.shorten(title, breadth / 1.12, style.SIZE), size=style.SIZE, bold=True
        )
        for y, (row, stat) in enumerate(zip(rows, values, strict=True)):
            _bar(panel, y, stat, palette.colour(row.variant.method))
        panel.line([(0, -0.5), (0, len(rows) - 0.5)], style.RULE, 0.9)
        if number == 0:
            panel.names_left([row.variant.label for row in rows], range(len(rows)), style.INK)
    return canvas.figure


def _bar(panel: Panel, y: float, stat: Stat | None, colour: str) -> None:
    canvas = panel.canvas
    if stat is None:
        canvas.text(panel.x(0) + 4, panel.y(y), "NA", colour=style.MUTED)
        return
    canvas.box(panel.x(0), panel.y(y) - 6, panel.x(stat.mean) - panel.x(0), 12, colour)
    if stat.std > 0:
        panel.line([(stat.mean - stat.std, y), (stat.mean + stat.std, y)], style.INK)
    end = panel.x(stat.mean + math.copysign(stat.std, stat.mean))
    text = f"{stat.mean:.1f}".replace("-", "−")
    canvas.text(end + (4 if stat.mean >= 0 else -4), panel.y(y), text, "left" if stat.mean >= 0 else "right")


@dataclass(frozen=True)
class Change:
    """A number that became another one."""

    name: str
    before: float
    after: float
    colour: str


@styled
def changes(rows: Sequence[Change], title: str, span: tuple[float, float], colour: str | None = None) -> Figure:
    """A line for each row from its number before (ring) to the one after (disc), and the difference."""
    left = min(max([style.text_width(row.name) for row in rows], default=20) + 8, 92.0)
    canvas = Canvas(THIRD, 16.0 * len(rows) + 42)
    panel = Panel(canvas, left, 18, THIRD - left - 38, 16.0 * len(rows), span, (len(rows) - 0.5, -0.5))
    panel.scale("x", 4)
    for y, row in enumerate(rows):
        panel.line([(row.before, y), (row.after, y)], row.colour, 2.2, alpha=0.55)
        panel.dots([(row.before, y)], row.colour, markerfacecolor=style.CARD, markeredgewidth=1.4)
        panel.dots([(row.after, y)], row.colour)
        canvas.text(THIRD - 2, panel.y(y), change(row.after - row.before), "right")
    panel.names_left([row.name for row in rows], range(len(rows)))
    canvas.heading(title, colour)
    return canvas.figure


def room(values: Sequence[float]) -> tuple[float, float]:
    """A scale that all figures of a row can share."""
    pad = max((max(values) - min(values)) * 0.04, 1.0)
    return max(min(values) - pad, -2.0), min(max(values) + pad, 102.0)


def kept(variant: Variant, rows: Sequence[Kept], palette: Palette, span: tuple[float, float]) -> Figure:
    """Per domain: accuracy when learned and after the last domain."""
    colour = palette.colour(variant.method)
    return changes([Change(row.domain, row.learned, row.end, colour) for row in rows], variant.label, span, colour)


@styled
def scatter(variants: Sequence[Variant], prices: Sequence[Stat], palette: Palette, title: str) -> Figure:
    """Price against accuracy after the last domain; the upper left corner is where one wants to be."""
    canvas = Canvas(THIRD, 210.0)
    x = [price.mean for price in prices]
    y = [v.last.mean for v in variants if v.last]
    log = min(x) > 0 and max(x) / min(x) > 30
    # Many methods cost the same, the least: labels need room on the left of them, too.
    xs = (min(x) / (max(x) / min(x)) ** 0.28, max(x) * 1.5) if log else (0.0, max(x) * 1.15 or 1.0)
    pad = max((max(y) - min(y)) * 0.15, 1.0)
    panel = Panel(canvas, 28, 34, THIRD - 40, 158, xs, (min(y) - pad, max(y) + pad), log)
    panel.scale("x", 4)
    panel.scale("y", 5)
    _scatter_labels(panel, variants, list(zip(x, y, strict=True)))
    for variant, price, value in zip(variants, x, y, strict=True):
        panel.dots(
            [(price, value)],
            palette.colour(variant.method),
            palette.marker(variant.method),
            7,
            markeredgecolor=style.CARD,
            markeredgewidth=0.8,
        )
    canvas.text((panel.left + panel.right) / 2, 6, title, "center", colour=style.MUTED)
    canvas.text(0, canvas.height - 8, "accuracy at the end, %", colour=style.MUTED)
    return canvas.figure


def _scatter_labels(panel: Panel, variants: Sequence[Variant], data: Sequence[tuple[float, float]]) -> None:
    texts = [style.shorten(v.label, 90) for v in variants]
    points = [(panel.x(x), panel.y(y)) for x, y in data]
    sizes = [(style.text_width(text) + 1, style.SMALL) for text in texts]
    corners = place(points, sizes, (panel.left, panel.bottom, panel.right + 10, panel.top))
    for text, point, (x, y), (width, height) in zip(texts, points, corners, sizes, strict=True):
        nearest = (min(max(point[0], x), x + width), min(max(point[1], y), y + height))
        if math.dist(nearest, point) > 8:
            panel.canvas.line([point[0], nearest[0]], [point[1], nearest[1]], style.RULE, 0.8)
        panel.canvas.text(x, y + height / 2, text)
