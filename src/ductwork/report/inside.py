"""Sections about what happens inside a run: the phases of a stage, transport, time and training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from ductwork.experiments.results import RunResult, StageRecord
from ductwork.report import heatmaps, process, style, tables
from ductwork.report.aggregate import Matrix, Stat, Variant
from ductwork.report.collect import Run
from ductwork.report.content import Block, Context, Picture, Section, how_many, in_words, same_order

# Variants whose phases are drawn, transport plans, and the class count beyond which a plan is not drawn.
MOST_PHASED, MOST_PLANS, MOST_CLASSES = 3, 6, 400


def phases(context: Context) -> Section | None:
    """What each phase of a stage did, for methods that record it."""
    phased = [v for v in context.lines if any(len(s.after) > 1 for run in v.shown for s in run.result.stages)]
    blocks = [_contribution(context, v) for v in phased[:MOST_PHASED]]
    diagnosed = _diagnostics(context)
    if diagnosed is not None:
        blocks.append(diagnosed)
    for variant in phased[:1] or context.lines[:1]:
        blocks += [*_task_vectors(context, variant), *_transport(context, variant)]
    if not blocks:
        return None
    return Section("phases", "What each phase contributed", "", tuple(blocks))


def _contribution(context: Context, variant: Variant) -> Block:
    runs = variant.of_order(context.group.order)
    results = [run.result for run in runs]
    stages = []
    for i in range(max(len(r.stages) for r in results)):
        there = [r.stages[i] for r in results if i < len(r.stages)]
        names = dict.fromkeys(name for stage in there for name in stage.after)
        means = {name: stat.mean for name in names if (stat := Stat.of(s.after.get(name) for s in there))}
        stages.append((there[0].domain, means))
    stages = stages[: heatmaps.MOST_CELLS]
    colour = context.palette.colour(variant.method)
    wide, narrow = (process.contributions(stages, variant.label, colour, narrow=n) for n in (False, True))
    label = f"{variant.label}, accuracy after each phase. " + "; ".join(
        f"{domain}: " + ", ".join(f"{name} {value:.1f}" for name, value in after.items()) for domain, after in stages
    )
    return Block(
        f"Accuracy on the domains so far after each phase of a stage; numbers are changes in points. "
        f"Order: {in_words(runs[0].result.order)}; {same_order(runs)}.",
        pictures=(context.picture(label, wide, narrow, name=f"phases {variant.label}"),),
    )


def _diagnostics(context: Context) -> Block | None:
    """Similarity and task-vector norm, by domain."""
    kinds: tuple[tuple[str, Callable[[StageRecord], float | None]], ...] = (
        ("Similarity of class centres", lambda s: s.similarity),
        ("Norm of the task vector", lambda s: s.task_vector_norm),
    )
    pictures = []
    for title, value in kinds:
        rows, domains = [], {}
        for variant in context.lines:
            found: dict[str, list[float | None]] = {}
            for run in variant.of_order(context.group.order):
                for stage in run.result.stages:
                    found.setdefault(stage.domain, []).append(value(stage))
            means = {name: stat.mean for name, values in found.items() if (stat := Stat.of(values))}
            if means:
                rows.append((variant, means))
                domains.update(dict.fromkeys(means))
        if rows and len(domains) <= heatmaps.MOST_CELLS:
            figure = process.by_domain(rows, list(domains), title, context.palette)
            label = f"{title}. " + "; ".join(
                f"{v.label}: " + ", ".join(f"{d} {x:.3g}" for d, x in means.items()) for v, means in rows
            )
            pictures.append(context.picture(label, figure, name=title))
    if not pictures:
        return None
    return Block(
        "By domain, when it was learned; colours and markers are those of the methods. Similarity is that of the class "
        "centres before and after fine-tuning (Eq. 6): 1 where the features stayed as they were. The task vector is "
        "what fine-tuning adds to the weights.",
        pictures=tuple(pictures),
    )


def _task_vectors(context: Context, variant: Variant) -> list[Block]:
    """The angles between the task vectors of domains: what merging adds up."""
    runs = variant.of_order(context.group.order)
    cosines = _triangle(
        context, [run.result for run in runs], "Cosine of task vectors", lambda stage: stage.task_vector_cosines
    )
    if cosines is None:
        return []
    caption = (
        f"{variant.label}: cosine between the task vectors of two domains, the one being learned (row) and an earlier "
        f"one (column); {same_order(runs)}. 0: they change the backbone in unrelated ways; 1: in the same way."
    )
    return [Block(caption, pictures=(cosines,))]


def _transport(context: Context, variant: Variant) -> list[Block]:
    runs = variant.of_order(context.group.order)
    results = [run.result for run in runs]
    table = tables.transport(results)
    if not table.rows:
        return []
    pictures = [
        _triangle(context, results, "Transport cost", lambda s: {k: r.cost for k, r in s.transport.items()}),
        _triangle(context, results, "Entropy of the plan", lambda s: {k: r.entropy for k, r in s.transport.items()}),
    ]
    drawn = tuple(picture for picture in pictures if picture is not None)
    blocks = [
        Block(
            f"{variant.label}: rows are the domain being learned, columns the earlier domain whose classifier "
            f"rows are carried along; {same_order(runs)}. Each map has its own scale.",
            pictures=drawn,
        ),
        Block(table=table, folded="Transport in numbers"),
    ]
    plans = _plans(context, runs[0])
    return [*blocks, plans] if plans is not None else blocks


def _triangle(
    context: Context, results: Sequence[RunResult], title: str, values: Callable[[StageRecord], Mapping[str, float]]
) -> Picture | None:
    """A number for each pair of a domain and an earlier one, as a map; the mean over runs."""
    found: dict[tuple[str, str], list[float]] = {}
    for result in results:
        for stage in result.stages:
            for earlier, value in values(stage).items():
                found.setdefault((stage.domain, earlier), []).append(value)
    means = {key: stat.mean for key, values in found.items() if (stat := Stat.of(values))}
    rows = tuple(dict.fromkeys(row for row, _ in means))
    columns = tuple(dict.fromkeys(column for _, column in means))
    if not means or max(len(rows), len(columns)) > heatmaps.MOST_CELLS:
        return None
    matrix = Matrix(rows, columns, tuple(tuple(means.get((r, c)) for c in columns) for r in rows), len(results))
    low, high = min(means.values()), max(means.values())
    digits = 0 if high >= 1000 else 1 if high >= 10 else 2 if high >= 0.1 or high == 0 else 3
    figure = heatmaps.matrix(matrix, title, None, (min(low, 0.0), high), digits, clear=True)
    return context.picture(f"{title}, from {low:.3g} to {high:.3g}", figure, name=title)


def _plans(context: Context, run: Run) -> Block | None:
    found = [
        (stage.domain, earlier, record)
        for stage in run.result.stages
        for earlier, record in stage.transport.items()
        if record.plan and record.plan[0] and max(len(record.plan), len(record.plan[0])) <= MOST_CLASSES
    ]
    if not found:
        return None
    # Of plans that are all but a diagonal one is enough: the others are drawn where mass goes elsewhere.
    spread = sorted(range(len(found)), key=lambda i: (found[i][2].entropy, i))
    shown = [found[i] for i in sorted(spread[-min(MOST_PLANS, context.panels // 2) :])]
    pictures = []
    for learned, earlier, record in shown:
        plan = record.plan or []
        sources = record.from_classes or [str(i + 1) for i in range(len(plan))]
        targets = record.to_classes or [str(i + 1) for i in range(len(plan[0]))]
        if len(sources) != len(plan) or any(len(row) != len(targets) for row in plan):
            continue
        same = [
            _own_share(row, targets.index(name)) for row, name in zip(plan, sources, strict=True) if name in targets
        ]
        share = f"; on average {100 * math.fsum(same) / len(same):.0f} % stays in the class" if same else ""
        pictures.append(
            context.picture(
                f"Transport plan, classes of {learned} and {earlier}, {len(sources)} by {len(targets)}{share}",
                heatmaps.plan(plan, sources, targets, f"{style.shorten(learned, 105)} → {style.shorten(earlier, 105)}"),
                name=f"transport plan {learned} {earlier}",
            )
        )
    if not pictures:
        return None
    bar = heatmaps.colour_bar((0.0, 1.0), "share of the row's mass", clear=True)
    pictures.append(context.picture("Colour scale", bar, name="transport plan scale"))
    more = f" The {len(shown)} of {how_many(len(found), 'plan')} that spread most." if len(shown) < len(found) else ""
    return Block(
        "Transport plans between class names; shares under 1 % are left out. Order: "
        f"{in_words(run.result.order)}, seed {run.result.seed}.{more}",
        pictures=tuple(pictures),
    )


def _own_share(row: Sequence[float], position: int) -> float:
    total = math.fsum(row)
    return row[position] / total if total > 0 else 0.0


def time(context: Context) -> Section | None:
    """Where the time went."""
    lines = context.lines
    timed = [(v, seconds) for v in lines if (seconds := v.phase_seconds())]
    blocks = []
    if timed:
        timed.sort(key=lambda pair: -sum(pair[1].values()))
        wide, narrow = (process.phase_times(timed, narrow=n) for n in (False, True))
        label = "Time by phase. " + "; ".join(f"{v.label} {process.clock(sum(s.values()))}" for v, s in timed)
        blocks.append(
            Block(
                "Training: of the backbone, prompts or adapters. Statistics: class centres, exemplars, projections, "
                "everything that needs passes but no gradients."
                + (" Mean over runs." if any(len(v.shown) > 1 for v in lines) else "")
                + context.left_out(lines),
                pictures=(context.picture(label, wide, narrow, name="time by phase"),),
            )
        )
    trained = [picture for v in context.multiples if (picture := _training(context, v)) is not None]
    if trained:
        blocks.append(Block("Training loss, epoch by epoch, of one run of each method.", pictures=tuple(trained)))
    if lines:
        stages = tables.stage_seconds(lines, context.group.order, context.group.one_order)
        blocks.append(Block(table=stages, folded="Seconds of each stage"))
        blocks.append(
            Block(
                table=tables.work(lines),
                folded="Work of a run: images through the network, bytes",
                caption="Sums over all stages; mean over runs.",
            )
        )
    return Section("time", "Where the time goes", "", tuple(blocks)) if blocks else None


def _training(context: Context, variant: Variant) -> Picture | None:
    runs = variant.of_order(context.group.order)
    losses = [e for e in (runs[0].metrics() if runs else []) if e.loss is not None and math.isfinite(e.loss)]
    if not losses:
        return None
    figure = process.training(losses, variant.label, context.palette.colour(variant.method))
    label = f"Training loss of {variant.label}, {len(losses)} epochs, last {losses[-1].loss:.3g}"
    return context.picture(label, figure, name=f"training {variant.label}")
