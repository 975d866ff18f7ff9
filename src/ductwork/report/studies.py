"""Sections of studies: several orders, an ablation, an upper bound, a grid of two parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ductwork.experiments.published import published
from ductwork.report import heatmaps
from ductwork.report.aggregate import Group, Matrix, Stat, Variant
from ductwork.report.content import Block, Context, Section, in_words
from ductwork.report.parts import change
from ductwork.report.tables import NA, Cell, Column, Table, cell, mark_best, points

# Recipes of the ablation in the order in which they build on each other, and what each of them adds.
_ABLATION: Mapping[str, tuple[str, str]] = {
    "baseline": ("Baseline", "class centres of the frozen backbone"),
    "variation-1": ("Variation 1", "+ merging of backbones (Eq. 4)"),
    "variation-2": ("Variation 2", "+ weights by similarity (Eq. 7)"),
    "variation-3": ("Variation 3", "+ retraining of new rows (Eq. 8)"),
    "paper": ("DUCT", "+ transport of old rows (Eq. 10)"),
}
_MOST_ORDERS = 12


def across(groups: Sequence[Group]) -> Section | None:
    """Average and last accuracy of each method on each stream and backbone, side by side."""
    if len(groups) < 2:
        return None
    columns = [Column("Method", numeric=False)]
    rows: dict[str, list[Cell]] = {}
    for group in groups:
        finished = [v for v in group.variants if v.last is not None]
        for variant in finished:
            rows.setdefault(variant.label, [Cell(variant.label, method=variant.method)])
        found = {variant.label: variant for variant in finished}
        for label, row in rows.items():
            row += [Cell(NA), Cell(NA)] * ((len(columns) - len(row)) // 2)  # the method is new in this group
            one = found.get(label)
            row += [
                cell(one.average if one else None, points),
                cell(one.last if one else None, points),
            ]
        name = _title(group, groups)
        columns += [Column(name, "A_bar, %", "higher"), Column(name, "A_B, %", "higher")]
    table = mark_best(Table("All results", tuple(columns), tuple(tuple(row) for row in rows.values())))
    caption = "Mean ± population standard deviation over orders and seeds; the best of a column in bold with a star."
    return Section("all", "All results", "", (Block(caption, table=table),)) if rows else None


def _title(group: Group, groups: Sequence[Group]) -> str:
    """What tells a group from the others."""
    if len({g.backbone for g in groups}) == 1:
        return group.stream
    return group.backbone if len({g.stream for g in groups}) == 1 else f"{group.stream}, {group.backbone}"


def orders(context: Context) -> Section | None:
    """Average and last accuracy of each method in each order."""
    group = context.group
    found = sorted({tuple(run.result.order) for v in group.variants for run in v.done}, key=lambda o: _place(group, o))
    if not 1 < len(found) <= _MOST_ORDERS:
        return None
    table = mark_best(_by_order(group, found))
    legend = "; ".join(f"{_name(group, order, found)}: {in_words(order)}" for order in found)
    return Section("orders", "Order by order", "", (Block(f"{legend}. Means over seeds.", table=table),))


def ablation(context: Context) -> Section | None:
    """What each part of DUCT adds, where its ablations were run."""
    by_recipe = {
        v.done[0].result.recipe: v for v in context.group.variants if v.method == "duct" and v.last is not None
    }
    lines = [(*words, by_recipe[recipe]) for recipe, words in _ABLATION.items() if recipe in by_recipe]
    if len(lines) < 2:
        return None
    rows: list[tuple[Cell, ...]] = []
    before: Stat | None = None
    for name, adds, variant in lines:
        last = variant.last
        step = None if before is None or last is None else last.mean - before.mean
        rows.append(
            (
                Cell(name, method=variant.method),
                Cell(adds),
                cell(variant.average, points),
                cell(last, points),
                Cell("" if step is None else change(step), step),
                cell(variant.forgetting, points),
            )
        )
        before = last
    columns = (
        Column("Variation", numeric=False),
        Column("What it adds", numeric=False),
        Column("Average accuracy", "A_bar, %", "higher"),
        Column("Last accuracy", "A_B, %", "higher"),
        Column("Step", "points", help="change of the last accuracy against the row above"),
        Column("Forgetting", "points", "lower"),
    )
    table = mark_best(Table("Ablation", columns, tuple(rows)))
    return Section("ablation", "What each part adds", "", (Block(table=table),))


def upper_bound(context: Context) -> Section | None:
    """How far each method is from training on all domains together."""
    finished = [v for v in context.group.variants if v.last is not None]
    joint = next((v for v in finished if not v.competes), None)
    others = [v for v in finished if v.competes]
    if joint is None or joint.last is None or not others:
        return None
    bound = joint.last.mean
    rows = []
    for variant in (joint, *others):
        assert variant.last is not None
        gap = bound - variant.last.mean
        errors = (100 - variant.last.mean) / (100 - bound) if bound < 100 else None
        rows.append(
            (
                Cell(variant.label, method=variant.method),
                cell(variant.last, points),
                Cell("" if variant is joint else points(gap), gap),
                Cell(NA if errors is None else f"{errors:.2f}", errors),
            )
        )
    columns = (
        Column("Method", numeric=False),
        Column("Last accuracy", "A_B, %"),
        Column("To the bound", "points", help="last accuracy of joint training minus that of the method"),
        Column("Errors", "times those of the bound", help="wrong answers for each wrong answer of joint training"),
    )
    caption = "Joint training has all images of all domains at once, which no method of the others may."
    table = Table("Upper bound", columns, tuple(rows))
    return Section("bound", "How far from the upper bound", "", (Block(caption, table=table),))


@dataclass(frozen=True)
class Sweep:
    """Runs of one method with one recipe that differ in two numbers only."""

    method: str
    names: tuple[str, str]
    values: tuple[tuple[float, ...], tuple[float, ...]]
    cells: Mapping[tuple[float, float], Variant]

    def matrix(self, number: str) -> Matrix:
        """``A_bar`` or ``A_B``: rows are values of the first parameter, columns of the second."""
        rows, columns = self.values
        found = {key: variant.stat(lambda r: getattr(r, number)) for key, variant in self.cells.items()}
        grid = tuple(
            tuple(stat.mean if (stat := found.get((row, column))) else None for column in columns) for row in rows
        )
        return Matrix(tuple(f"{v:g}" for v in rows), tuple(f"{v:g}" for v in columns), grid, len(self.cells))


def sweeps(group: Group) -> list[Sweep]:
    """Every method that was run over a grid of two numeric parameters, at least two values of each."""
    by_recipe: dict[tuple[str, str], list[Variant]] = {}
    for variant in group.variants:
        if variant.done:
            by_recipe.setdefault((variant.method, variant.done[0].result.recipe), []).append(variant)
    made = (_sweep(method, variants) for (method, _), variants in by_recipe.items() if len(variants) > 3)
    return [sweep for sweep in made if sweep is not None]


def robustness(context: Context) -> Section | None:
    """Accuracy over a grid of two parameters."""
    blocks = []
    for sweep in sweeps(context.group):
        first, second = sweep.names
        pictures, best = [], ""
        for number, words in (("A_bar", "Average accuracy"), ("A_B", "Last accuracy")):
            matrix = sweep.matrix(number)
            known = [(v, r, c) for r, row in enumerate(matrix.values) for c, v in enumerate(row) if v is not None]
            if not known or max(len(matrix.rows), len(matrix.columns)) > heatmaps.MOST_NUMBERS:
                continue
            low, high = min(known)[0], max(known)[0]
            label = f"{words} of {sweep.method} by {first} (rows) and {second} (columns), {low:.1f} to {high:.1f} %"
            figure = heatmaps.matrix(
                matrix, words, context.palette.colour(sweep.method), (low, max(high, low + 1e-9)), axes=(first, second)
            )
            pictures.append(context.picture(label, figure, name=f"robustness {number}"))
            top, row, column = max(known)
            best += (
                f" {words}: best {top:.2f} % at {first} = {matrix.rows[row]}, {second} = {matrix.columns[column]}; "
                f"worst {low:.2f} %."
            )
        if pictures:
            caption = (
                f"{sweep.method}: rows are values of {first}, columns of {second}; each map has its own scale.{best}"
            )
            blocks.append(Block(caption, pictures=tuple(pictures)))
    return Section("robustness", "How much two parameters matter", "", tuple(blocks)) if blocks else None


def _sweep(method: str, variants: Sequence[Variant]) -> Sweep | None:
    params = [variant.done[0].result.params for variant in variants]
    differing = [key for key in sorted({k for p in params for k in p}) if len({repr(p.get(key)) for p in params}) > 1]
    if len(differing) != 2 or not all(_is_number(p.get(name)) for p in params for name in differing):
        return None
    first, second = differing
    cells = {(float(p[first]), float(p[second])): variant for p, variant in zip(params, variants, strict=True)}
    rows, columns = (tuple(sorted({key[i] for key in cells})) for i in (0, 1))
    return Sweep(method, (first, second), (rows, columns), cells) if min(len(rows), len(columns)) > 1 else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _by_order(group: Group, found: Sequence[tuple[str, ...]]) -> Table:
    columns = [Column("Method", numeric=False)]
    for order in found:
        name = _name(group, order, found)
        columns += [Column(name, "A_bar, %", "higher"), Column(name, "A_B, %", "higher")]
    rows = []
    for variant in group.variants:
        if variant.last is None:
            continue
        row = [Cell(variant.label, method=variant.method)]
        for order in found:
            results = [run.result for run in variant.done if tuple(run.result.order) == order]
            average = None if variant.only_at_the_end else Stat.of(r.A_bar for r in results)
            row += [cell(average, points), cell(Stat.of(r.A_B for r in results), points)]
        rows.append(tuple(row))
    return Table("Order by order", tuple(columns), tuple(rows))


def _place(group: Group, order: tuple[str, ...]) -> tuple[int, tuple[str, ...]]:
    return published().order_number(group.stream, order) or 1000, order


def _name(group: Group, order: tuple[str, ...], found: Sequence[tuple[str, ...]]) -> str:
    """The paper's number of an order, or a letter for one that it does not know."""
    number = published().order_number(group.stream, order)
    return f"Order {number}" if number else f"Order {chr(ord('A') + list(found).index(order))}"
