"""Figures of what happens inside a stage: phases, diagnostics, time and training curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from ductwork.experiments.results import EpochRecord
from ductwork.report import style
from ductwork.report.aggregate import Variant
from ductwork.report.figures import NARROW, THIRD, WIDE
from ductwork.report.parts import Canvas, Panel, change, legend_rows
from ductwork.report.style import Palette, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled
def contributions(
    stages: Sequence[tuple[str, Mapping[str, float]]], title: str, colour: str, narrow: bool = False
) -> Figure:
    """Accuracy after each phase of each stage, joined; numbers say how much a phase changed."""
    canvas = Canvas(NARROW, 230.0) if narrow else Canvas(WIDE, 250.0)
    # A stage lists what was measured in its last pass first; the order of work is another.
    phases = sorted(dict.fromkeys(phase for _, after in stages for phase in after), key=_phase_rank)
    colours = style.phase_colours(phases)
    values = [v for _, after in stages for v in after.values() if math.isfinite(v)] or [0.0, 100.0]
    pad = max((max(values) - min(values)) * 0.14, 0.5)
    panel = Panel(
        canvas, 32, 20, canvas.width - 38, canvas.height - 66, (0, len(stages)), (min(values) - pad, max(values) + pad)
    )
    panel.scale("y", 5)
    slot = panel.x(1) - panel.x(0)
    for number, (_, after) in enumerate(stages):
        known = [
            (number + (i + 1) / (len(phases) + 1), after[name], colours[name])
            for i, name in enumerate(phases)
            if math.isfinite(after.get(name, math.nan))
        ]
        panel.line([(x, value) for x, value, _ in known], style.RULE, 1.2)
        for x, value, shade in known:
            panel.dots([(x, value)], shade, size=7, markeredgecolor=style.INK, markeredgewidth=0.8)
        if slot / (len(phases) + 1) >= 26:
            _changes(panel, [(x, value) for x, value, _ in known])
    canvas.lines([[(panel.x(i), panel.bottom), (panel.x(i), panel.top)] for i in range(1, len(stages))], style.GRID)
    panel.names_below([style.shorten(name, slot - 4) for name, _ in stages], [i + 0.5 for i in range(len(stages))])
    canvas.heading(title, colour, "accuracy on the domains so far, %" if not narrow else "accuracy, %")
    canvas.legend(colours, canvas.height - 26)
    return canvas.figure


def _changes(panel: Panel, points: Sequence[tuple[float, float]]) -> None:
    for (_, before), (x, value) in pairwise(points):
        panel.canvas.text(
            panel.x(x), panel.y(value) + (10 if value >= before else -10), change(value - before), "center", 7.5
        )


@styled
def phase_times(rows: Sequence[tuple[Variant, Mapping[str, float]]], narrow: bool = False) -> Figure:
    """Seconds by kind of work, stacked; a bar for each method."""
    rows = [(variant, _by_kind(seconds)) for variant, seconds in rows]
    phases = sorted({phase for _, seconds in rows for phase in seconds}, key=_phase_rank)
    colours = style.phase_colours(phases)
    width = NARROW if narrow else WIDE
    left = min(max(style.text_width(v.label) for v, _ in rows) + 10, 84.0 if narrow else 230.0)
    canvas = Canvas(width, 19.0 * len(rows) + 8 + 13 * legend_rows(phases, width))
    longest = max(math.fsum(seconds.values()) for _, seconds in rows) or 1.0
    panel = Panel(canvas, left, 2, width - left - 60, 19.0 * len(rows), (0, longest), (len(rows) - 0.5, -0.5))
    for y, (_, seconds) in enumerate(rows):
        start = 0.0
        for phase in phases:
            if seconds.get(phase, 0.0) > 0:
                breadth = panel.x(seconds[phase]) - panel.x(0)
                canvas.box(panel.x(start), panel.y(y) - 6, breadth, 12, colours[phase])
                start += seconds[phase]
        canvas.text(panel.x(start) + 5, panel.y(y), clock(start))
    panel.names_left([v.label for v, _ in rows], range(len(rows)), style.INK)
    canvas.legend(colours, canvas.height - 7)
    return canvas.figure


@styled
def training(losses: Sequence[EpochRecord], title: str, colour: str) -> Figure:
    """Loss by epoch (records that have one), stage after stage; a line of its own for each phase that trains."""
    lines: dict[tuple[int, str], list[tuple[float, float]]] = {}
    borders: dict[int, int] = {}
    for position, record in enumerate(losses):
        borders.setdefault(record.stage, position)
        lines.setdefault((record.stage, record.phase), []).append((position + 1.0, record.loss or 0.0))
    heights = [loss for points in lines.values() for _, loss in points]
    canvas = Canvas(THIRD, 160)
    panel = Panel(
        canvas, 30, 20, THIRD - 36, 116, (0.5, len(losses) + 0.5), (min(0.0, *heights), max(*heights, 1e-9) * 1.05)
    )
    panel.scale("y", 4)
    phases = list(dict.fromkeys(phase for _, phase in lines))
    for (_, phase), points in lines.items():
        number = phases.index(phase)
        panel.line(
            points,
            colour if number == 0 else style.MUTED,
            1.6,
            marker="o" if len(points) == 1 else "",
            linestyle="-" if number < 2 else ":",
        )
    edges = [*borders.values(), len(losses)]
    canvas.lines([[(panel.x(e + 0.5), panel.bottom), (panel.x(e + 0.5), panel.top)] for e in edges[1:-1]], style.GRID)
    every = max(1, len(borders) // 10)
    names = [f"stage {n}" if len(borders) < 5 else str(n) for n in borders]
    panel.names_below(names[::every], [(a + b + 1) / 2 for a, b in pairwise(edges)][::every])
    canvas.heading(title, colour, "loss: " + ", ".join(phases[:3]))
    return canvas.figure


@styled
def by_domain(
    rows: Sequence[tuple[Variant, Mapping[str, float]]], domains: Sequence[str], title: str, palette: Palette
) -> Figure:
    """A number for each domain and method, as dots on rows of domains."""
    left = min(max(style.text_width(name) for name in domains) + 8, 92.0)
    values = [v for _, found in rows for v in found.values()]
    canvas = Canvas(THIRD, 16.0 * len(domains) + 42)
    panel = Panel(
        canvas,
        left,
        18,
        THIRD - left - 12,
        16.0 * len(domains),
        (min(0.0, *values), max(0.0, *values) * 1.05 or 1.0),
        (len(domains) - 0.5, -0.5),
    )
    panel.scale("x", 4)
    for variant, found in rows:
        panel.dots(
            [(found[name], y) for y, name in enumerate(domains) if name in found],
            palette.colour(variant.method),
            palette.marker(variant.method),
            markeredgecolor=style.CARD,
        )
    panel.names_left(domains, range(len(domains)))
    canvas.heading(title)
    return canvas.figure


# What phases of different methods have in common: twenty names with twenty colours would tell nobody anything.
_KINDS = {
    **dict.fromkeys(("finetune", "train", "adapt", "prompt", "prompts", "joint"), "training"),
    **dict.fromkeys(("centers", "prototypes", "project", "cluster", "exemplars", "means", "similarity"), "statistics"),
}


def _by_kind(seconds: Mapping[str, float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for phase, value in seconds.items():
        kind = _KINDS.get(phase, phase)
        found[kind] = found.get(kind, 0.0) + value
    return found


def clock(seconds: float) -> str:
    """``8.5 s``, ``3 min 20 s``, ``1 h 05 min``."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def _phase_rank(phase: str) -> tuple[int, str]:
    known = list(style.PHASES)
    return (len(known), "") if phase == "other" else (known.index(phase) if phase in known else len(known) - 1, phase)
