"""Tables as plain data; ``writers`` puts them into files."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ductwork.experiments.results import RunResult
from ductwork.report.aggregate import BOUND, Group, Matrix, Stat, Variant
from ductwork.report.reading import verdict

NA = "NA"
Better = Literal["higher", "lower"]


@dataclass(frozen=True)
class Column:
    """A heading; ``better`` says which end is marked as best, ``help`` what it means in words."""

    name: str
    symbol: str = ""
    better: Better | None = None
    help: str = ""
    numeric: bool = True
    bar: bool = False


@dataclass(frozen=True)
class Cell:
    """What is shown, and the unrounded number behind it."""

    text: str
    value: float | None = None
    std: float | None = None
    best: bool = False
    method: str | None = None
    note: str = ""
    share: float = 0.0
    tag: tuple[str, str] = ("", "")
    mark: str = ""


@dataclass(frozen=True)
class Table:
    """``notes`` say what the marks of cells stand for."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[tuple[str, str], ...] = ()


Format = Callable[[float], str]


def points(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")


def whole(value: float) -> str:
    return f"{value:,.0f}".replace(",", "\u2009")


def millions(value: float) -> str:
    return f"{value / 1e6:.2f}\u00a0M" if value >= 1e6 else whole(value)


def byte_count(value: float) -> str:
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= limit:
            return f"{value / limit:.1f}\u00a0{unit}"
    return f"{value:.0f}\u00a0B"


def short(value: float) -> str:
    return f"{value:.4g}"


def cell(stat: Stat | None, form: Format) -> Cell:
    """``86.79 ± 0.31``; the deviation only when there is more than one run, and not of what never varies."""
    if stat is None:
        return Cell(NA)
    varies = stat.n > 1 and (stat.std > 0 or form is points)
    return Cell(form(stat.mean), stat.mean, stat.std if varies else None, note=form(stat.std) if varies else "")


_HEADLINE: tuple[tuple[Column, Callable[[RunResult], float | None], Format], ...] = (
    (
        Column(
            "Last accuracy", "A_B, %", "higher", "right on the test images of all domains, after the last one", bar=True
        ),
        lambda r: r.A_B,
        points,
    ),
    (
        Column(
            "Forgetting",
            "points",
            "lower",
            "by how much accuracy on a domain ends below its best, mean over all domains but the last",
            bar=True,
        ),
        lambda r: r.forgetting,
        points,
    ),
    (
        Column("Average accuracy", "A_bar, %", "higher", "mean of that number over all stages"),
        lambda r: r.A_bar,
        points,
    ),
    (
        Column(
            "Forgetting",
            "Chaudhry",
            "lower",
            "the same, with the best taken before the last stage, so that it can be negative",
        ),
        lambda r: r.forgetting_chaudhry,
        points,
    ),
    (
        Column("Backward transfer", "BWT", "higher", "change of accuracy on a domain since it was learned"),
        lambda r: r.bwt,
        points,
    ),
    (Column("Time", "s", "lower", "seconds of the whole run"), lambda r: r.seconds or None, lambda v: f"{v:.1f}"),
    (
        Column("Parameters", "", "lower", "of the model that is used after the last domain"),
        lambda r: r.price.parameters or None,
        millions,
    ),
    (
        Column("State", "bytes", "lower", "what must be kept to learn the next domain"),
        lambda r: r.price.state_bytes or None,
        byte_count,
    ),
    (
        Column("Passes", "an image", "lower", "through the backbone, to classify one image"),
        lambda r: r.price.inference_passes,
        lambda v: f"{v:.3g}",
    ),
)


_ON_THE_WAY = ("Forgetting", "Average accuracy", "Backward transfer")


def headline(group: Group, title: str = "Methods") -> Table:
    """The methods of a group, best first."""
    columns = (Column("Method", numeric=False), *(column for column, _, _ in _HEADLINE), Column("Runs"))
    rows = []
    for variant in group.variants:
        finished = f"{len(variant.done)}" if not variant.status else f"{len(variant.done)} of {len(variant.runs)}"
        rows.append(
            (
                Cell(variant.label, method=variant.method, note=variant.status, tag=verdict(variant)),
                *(
                    Cell("")
                    if variant.only_at_the_end and column.name in _ON_THE_WAY
                    else cell(variant.stat(value), form)
                    for column, value, form in _HEADLINE
                ),
                Cell(finished, float(len(variant.done))),
            )
        )
    return mark_best(Table(title, columns, tuple(rows)))


def mark_best(table: Table) -> Table:
    """Mark the best of each column that has one: all that show the same text, unless everybody does.

    The upper bound takes no part.
    """
    marked = [list(row) for row in table.rows]
    for j, column in enumerate(table.columns):
        top = max((abs(row[j].value or 0.0) for row in marked), default=0.0) or 1.0
        for row in marked if column.bar else ():
            row[j] = replace(row[j], share=max(0.0, row[j].value or 0.0) / top)
        entries = [
            (value, row[j].text) for row in marked if row[0].method != BOUND and (value := row[j].value) is not None
        ]
        if column.better is None or len({text for _, text in entries}) < 2:
            continue
        _, best = max(entries) if column.better == "higher" else min(entries)
        for row in marked:
            row[j] = replace(row[j], best=row[j].text == best and row[0].method != BOUND)
    return replace(table, rows=tuple(tuple(row) for row in marked))


def curve(group: Group, variants: Sequence[Variant]) -> Table:
    """Accuracy on the domains so far after each stage: the numbers behind the curves."""
    count = max((len(v.curve) for v in variants), default=0)
    names = _stage_names(group.order, group.one_order, count)
    rows = []
    for variant in variants:
        stats: list[Stat | None] = [*variant.curve, *[None] * (count - len(variant.curve))]
        if variant.only_at_the_end:
            stats[:-1] = [None] * (count - 1)
        rows.append((Cell(variant.label, method=variant.method), *(cell(stat, points) for stat in stats)))
    columns = (Column("Method", numeric=False), *(Column(name, "A_b, %", "higher") for name in names))
    return mark_best(Table("Accuracy after each domain", columns, tuple(rows)))


def _stage_names(order: Sequence[str], one_order: bool, count: int) -> list[str]:
    return [order[i] if one_order and i < len(order) else f"stage {i + 1}" for i in range(count)]


def stage_seconds(variants: Sequence[Variant], order: Sequence[str], one_order: bool) -> Table:
    """Seconds of each stage, mean over runs."""
    count = max((len(run.result.stages) for v in variants for run in v.shown), default=0)
    names = _stage_names(order, one_order, count)
    rows = []
    for variant in variants:
        results = [run.result for run in variant.shown]
        stats = [
            Stat.of(
                math.fsum(r.stages[i].seconds.values()) for r in results if i < len(r.stages) and r.stages[i].seconds
            )
            for i in range(count)
        ]
        rows.append((Cell(variant.label, method=variant.method), *(cell(stat, lambda v: f"{v:.1f}") for stat in stats)))
    columns = (Column("Method", numeric=False), *(Column(name, "s") for name in names))
    return Table("Seconds of each stage", columns, tuple(rows))


_WORK: tuple[tuple[Column, Callable[[RunResult], float], Format], ...] = (
    (Column("Frozen passes", "images"), lambda r: sum(s.work.frozen for s in r.stages), whole),
    (Column("Training passes", "images"), lambda r: sum(s.work.train for s in r.stages), whole),
    (Column("Test passes", "images"), lambda r: sum(s.work.test for s in r.stages), whole),
    (Column("Decoded", "images"), lambda r: sum(s.work.decoded for s in r.stages), whole),
    (Column("Written", "bytes"), lambda r: sum(s.work.bytes_written for s in r.stages), byte_count),
    (Column("Peak memory", "bytes"), lambda r: r.peak_memory_bytes, byte_count),
)


def work(variants: Sequence[Variant]) -> Table:
    """Images that went through the network and bytes that were written, over all stages, mean over runs."""
    rows = tuple(
        (
            Cell(variant.label, method=variant.method),
            *(cell(Stat.of(value(run.result) for run in variant.shown), form) for _, value, form in _WORK),
        )
        for variant in variants
    )
    return Table("Work of a run", (Column("Method", numeric=False), *(c for c, _, _ in _WORK)), rows)


def transport(results: Sequence[RunResult]) -> Table:
    """Cost, entropy and marginal error of carrying each earlier block along, mean over runs of one order."""
    found: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for result in results:
        for stage in result.stages:
            for earlier, record in stage.transport.items():
                found.setdefault((stage.domain, earlier), []).append(
                    (record.cost, record.entropy, record.marginal_error)
                )
    rows = tuple(
        (Cell(learned), Cell(earlier), *(cell(Stat.of(r[k] for r in records), short) for k in range(3)))
        for (learned, earlier), records in found.items()
    )
    columns = (
        Column("Learning", numeric=False),
        Column("carries along", numeric=False),
        Column("Cost"),
        Column("Plan entropy", "nats"),
        Column("Marginal error"),
    )
    return Table("Transport", columns, rows)


def matrix(values: Matrix, title: str) -> Table:
    """The accuracy matrix as a table."""
    rows = tuple(
        (Cell(name), *(Cell("" if v is None else f"{v:.2f}", v) for v in row))
        for name, row in zip(values.rows, values.values, strict=True)
    )
    return Table(title, (Column("After", numeric=False), *(Column(name) for name in values.columns)), rows)
