"""Published numbers beside those that were obtained, wherever stream, backbone, method and order are the paper's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ductwork.experiments.published import Fact, Metric, Published, published
from ductwork.experiments.results import RunResult
from ductwork.report.aggregate import Group, Stat, Variant
from ductwork.report.collect import Run
from ductwork.report.content import Block, Context, Picture, Section
from ductwork.report.figures import Change, changes, room
from ductwork.report.studies import sweeps
from ductwork.report.tables import Cell, Column, Table, cell, points

_METRICS: dict[Metric, tuple[str, str, Callable[[RunResult], float | None]]] = {
    "A_bar": ("Average accuracy", "A_bar, %", lambda r: r.A_bar),
    "A_B": ("Last accuracy", "A_B, %", lambda r: r.A_B),
    "forgetting": ("Forgetting", "points", lambda r: r.forgetting),
}
# A mean over orders means something only where each of them was run.
_OVER_ORDERS = "table-1"
_MARKS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Pair:
    """One published number and the runs that answer it."""

    fact: Fact
    variant: Variant
    obtained: Stat
    runs: int

    @property
    def difference(self) -> float | None:
        return None if self.fact.value is None else self.obtained.mean - self.fact.value


def pairs(groups: Sequence[Group]) -> dict[str, list[Pair]]:
    """What can be compared, by source, in the order in which the paper prints it."""
    known = published()
    found: dict[str, list[Pair]] = {}
    # Runs over a grid of parameters are about the parameters, and most of them were never the paper's.
    swept = {id(variant) for group in groups for sweep in sweeps(group) for variant in sweep.cells.values()}
    for fact in known.facts:
        for group in groups:
            if (group.stream, group.backbone) != (fact.stream, fact.backbone):
                continue
            for variant in group.variants:
                if id(variant) in swept:
                    continue
                pair = _pair(known, fact, variant)
                if pair is not None:
                    found.setdefault(fact.source, []).append(pair)
    return {source: found[source] for source in known.sources if source in found}


def beside(groups: Sequence[Group], context: Context) -> Section | None:
    """A table for each of the paper's tables that runs have something to say about, and pictures of the first."""
    known = published()
    blocks: list[Block] = []
    for source, found in pairs(groups).items():
        where = known.sources[source]
        if not blocks and len(found) > 1:
            caption = f"{where.where}. Ring: published. Disc: obtained. Number: the difference in points."
            blocks.append(Block(caption, pictures=tuple(_pictures(found, context))))
        words = f"{_sentence(where.what)} {_sentence(where.note)}"
        several = f"{where.where}: {where.what}" if any(block.table for block in blocks) else ""
        blocks.append(Block(words, table=_table(where.where, found), folded=several))
    lead = (
        "Numbers as the paper prints them (Zhou et al., CVPR 2025), and what these runs gave with the same stream, "
        "backbone, method and order. A letter marks a printed number that cannot be right, or needs a remark."
    )
    return Section("paper", "Published beside obtained", lead, tuple(blocks)) if blocks else None


def _pictures(found: Sequence[Pair], context: Context) -> Iterator[Picture]:
    """For each stream and backbone, and each number: published and obtained of every method."""
    by_place: dict[tuple[str, str, Metric], list[Pair]] = {}
    for pair in found:
        if pair.difference is not None:
            by_place.setdefault((pair.fact.stream, pair.fact.backbone, pair.fact.metric), []).append(pair)
    if not by_place:
        return
    span = room([v for same in by_place.values() for p in same for v in (p.fact.value or 0.0, p.obtained.mean)])
    several = len({backbone for _, backbone, _ in by_place}) > 1
    for (stream, backbone, metric), same in by_place.items():
        place = f"{stream}, {backbone}" if several else stream
        title = f"{place}: {_METRICS[metric][0].lower()}"
        rows = [
            Change(p.variant.label, p.fact.value or 0.0, p.obtained.mean, context.palette.colour(p.variant.method))
            for p in same
        ]
        label = f"{title}, published and obtained. " + "; ".join(
            f"{r.name} {r.before:.1f}, {r.after:.1f}" for r in rows
        )
        yield context.picture(label, changes(rows, title, span), name=f"published {place} {metric}")


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def _pair(known: Published, fact: Fact, variant: Variant) -> Pair | None:
    if fact.method != variant.method or not variant.done:
        return None
    if fact.recipe is not None and fact.recipe != variant.done[0].result.recipe:
        return None
    value, by_order = _METRICS[fact.metric][2], _by_order(known, variant)
    if fact.order is not None:
        runs = by_order.get(fact.order, [])
        stat = Stat.of(value(run.result) for run in runs)
    elif fact.source == _OVER_ORDERS:
        if len(by_order) < len(known.orders[fact.stream]):
            return None
        runs = [run for same in by_order.values() for run in same]
        # Order by order, so that an order with more seeds does not count for more.
        stat = Stat.of(mean.mean for same in by_order.values() if (mean := Stat.of(value(r.result) for r in same)))
    else:
        runs = list(variant.done)
        stat = Stat.of(value(run.result) for run in runs)
    return None if stat is None else Pair(fact, variant, stat, len(runs))


def _by_order(known: Published, variant: Variant) -> dict[int, list[Run]]:
    found: dict[int, list[Run]] = {}
    for run in variant.done:
        number = known.order_number(run.result.stream, tuple(run.result.order))
        if number is not None:
            found.setdefault(number, []).append(run)
    return found


def _table(title: str, found: Sequence[Pair]) -> Table:
    metrics = list(dict.fromkeys(pair.fact.metric for pair in found))
    several = {name: len({_place(pair, name) for pair in found}) > 1 for name in ("stream", "backbone")}
    columns = [Column("Method", numeric=False)]
    columns += [Column(name.capitalize(), numeric=False) for name, more in several.items() if more]
    for metric in metrics:
        name, symbol, _ = _METRICS[metric]
        columns += [
            Column(f"{name}, published", symbol),
            Column("obtained", symbol),
            Column("difference", "points", help="obtained minus published"),
        ]
    rows: dict[tuple[str, str, str], dict[Metric, Pair]] = {}
    for pair in found:
        rows.setdefault((pair.fact.stream, pair.fact.backbone, pair.variant.label), {})[pair.fact.metric] = pair
    marks = _marks(found)
    made = []
    for (stream, backbone, label), cells in rows.items():
        one = next(iter(cells.values()))
        row = [Cell(label, method=one.variant.method)]
        row += [Cell(text) for text, more in zip((stream, backbone), several.values(), strict=True) if more]
        for metric in metrics:
            row += _cells(cells.get(metric), marks)
        made.append((*row, Cell(str(one.runs), float(one.runs))))
    return Table(title, (*columns, Column("Runs")), tuple(made), tuple((mark, text) for text, mark in marks.items()))


def _cells(pair: Pair | None, marks: dict[str, str]) -> list[Cell]:
    if pair is None:
        return [Cell("NA"), Cell("NA"), Cell("NA")]
    fact, difference = pair.fact, pair.difference
    printed = Cell("NA") if fact.value is None else cell(Stat(fact.value, fact.std or 0.0, 2), points)
    if fact.std is None:
        printed = replace(printed, std=None, note="")
    printed = replace(printed, mark=marks.get(fact.flag, ""))
    text = "NA" if difference is None else f"{difference:+.2f}".replace("-", "−")
    return [printed, cell(pair.obtained, points), Cell(text, difference)]


def _place(pair: Pair, name: str) -> str:
    return pair.fact.stream if name == "stream" else pair.fact.backbone


def _marks(found: Iterable[Pair]) -> dict[str, str]:
    """A letter for each remark about a printed number."""
    flags = dict.fromkeys(pair.fact.flag for pair in found if pair.fact.flag)
    return {flag: _MARKS[i] if i < len(_MARKS) else str(i + 1) for i, flag in enumerate(flags)}
