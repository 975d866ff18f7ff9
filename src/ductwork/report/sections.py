"""The sections of a page. Adding one is adding a function to ``SECTIONS``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ductwork.report import figures, heatmaps, parts, reading, style, tables
from ductwork.report.aggregate import Group, Stat, Variant, groups
from ductwork.report.beside import beside
from ductwork.report.collect import Run, Scan
from ductwork.report.content import MOST_LINES, Block, Chapter, Context, Page, Section, how_many, in_words, same_order
from ductwork.report.files import Files
from ductwork.report.inside import phases, time
from ductwork.report.provenance import provenance
from ductwork.report.space import space
from ductwork.report.studies import ablation, across, orders, robustness, upper_bound

# Beyond these a page would be too heavy to open; what is left out is said on the page.
MOST_CHAPTERS, MOST_PANELS = 6, 24


def report(found: Scan, files: Files | None = None) -> Page:
    """Everything that the template needs; what is drawn and counted goes to ``files``, too, where there are some."""
    palette = style.Palette(run.result.method for run in found.runs)
    grouped = groups(found.runs)
    drawn = grouped[:MOST_CHAPTERS]
    panels = max(3, min(MOST_LINES, MOST_PANELS // len(drawn)))
    chapters = [
        _chapter(
            Context(group, palette, f"g{i}f", panels, _folder(files, group, grouped)),
            i,
            SECTIONS if i < MOST_CHAPTERS else (headline,),
        )
        for i, group in enumerate(grouped)
    ]
    together = Context(grouped[0], palette, "p", files=files)
    before, after = ((section,) if section else () for section in (across(grouped), beside(grouped, together)))
    if files is not None:
        _write_tables(files, (*before, *after))
    warnings = found.warnings
    if len(grouped) > MOST_CHAPTERS:
        warnings += (f"Figures are drawn for the {MOST_CHAPTERS} streams with most runs; the others have their table.",)
    return Page(
        title=_title(grouped),
        summary=_summary(found.runs, grouped),
        warnings=warnings,
        unfinished=tuple(
            (run.folder.as_posix(), run.progress, run.result.reason or "") for run in found.runs if not run.done
        ),
        before=before,
        chapters=tuple(chapters),
        after=after,
        provenance=provenance(found.runs),
        swatches={run.result.method: palette.css(run.result.method) for run in found.runs},
    )


def headline(context: Context) -> Section:
    """Which method is right in the end, which one forgets, and what each costs."""
    group = context.group
    several = any(len(v.done) > 1 for v in group.variants)
    caption = "Best values in bold with a star." if len(group.variants) > 1 else ""
    if several:
        caption += " Mean ± population standard deviation over orders and seeds."
    if any(reading.verdict(v)[0] for v in group.variants):
        caption += (
            f" A method “keeps” when it forgot at most {reading.KEEPS:g} points and “forgets” from {reading.FORGETS:g}."
        )
    return Section("methods", "Methods", "", (Block(caption.strip(), table=tables.headline(group)),))


def curves(context: Context) -> Section | None:
    """Accuracy on everything learned so far, stage by stage."""
    shown = context.lines
    if not shown:
        return None
    last = [f"{v.label}: {v.curve[-1].mean:.1f} %" for v in shown if v.curve and v.curve[-1]]
    label = "Accuracy on all domains seen so far after each domain. At the end, " + "; ".join(last)
    wide, narrow = (figures.curves(context.group, shown, context.palette, narrow=n) for n in (False, True))
    band = " Bands are one standard deviation over orders and seeds." if any(len(v.shown) > 1 for v in shown) else ""
    gap = " In brackets: the lead over the runner-up." if len(shown) > 1 else ""
    if any(v.only_at_the_end for v in shown):
        gap += " Dashed: training on all domains at once, the upper bound."
    order = f" Order: {in_words(context.group.order)}." if context.group.one_order else ""
    return Section(
        "curves",
        "Accuracy as domains come in",
        "Each point is the share of right answers on the test images of all domains learned so far.",
        (
            Block(
                (band + gap + order + context.left_out(shown)).strip(),
                pictures=(context.picture(label, wide, narrow, name="curves"),),
            ),
            Block(table=tables.curve(context.group, shown), folded="Numbers of the curves"),
        ),
    )


def matrices(context: Context) -> Section | None:
    """One accuracy matrix for each method, all in one order and on one scale."""
    shown = tuple(v for v in context.multiples if not v.only_at_the_end)
    made = [(v, v.of_order(context.group.order), v.matrix(context.group.order)) for v in shown]
    made = [
        (v, runs, m)
        for v, runs, m in made
        if m.rows and m.columns and max(len(m.rows), len(m.columns)) <= heatmaps.MOST_CELLS
    ]
    if not made:
        return None
    every = [v for _, _, m in made for row in m.values for v in row if v is not None]
    span = (math.floor(min(every) / 10) * 10.0, 100.0) if every else (0.0, 100.0)
    pictures = [
        context.picture(
            _matrix_label(v.label, m.rows[-1], m.columns, m.values[-1]),
            heatmaps.matrix(m, v.label, context.palette.colour(v.method), span),
            name=f"matrix {v.label}",
        )
        for v, _, m in made
    ]
    if context.files is not None:  # on the page the pictures have the numbers in them
        for v, _, m in made:
            context.files.table(tables.matrix(m, f"Matrix {v.label}"))
    bar = heatmaps.colour_bar(span, "accuracy, %")
    pictures.append(context.picture("Colour scale", bar, name="matrix scale"))
    counts = {same_order(runs) for _, runs, _ in made}
    caption = (
        f"Order: {in_words(context.group.order)}. Each matrix is "
        f"{counts.pop() if len(counts) == 1 else 'the mean of the runs of each method'} in this order."
    )
    other = [
        f"{v.label} ({in_words(runs[0].result.order)})"
        for v, runs, _ in made
        if tuple(runs[0].result.order) != context.group.order
    ]
    if other:
        caption += f" Not run in this order, and shown in another: {'; '.join(other)}."
    if not context.group.one_order:
        caption += " Runs in other orders have other rows and are not mixed in."
    return Section(
        "matrix",
        "What is known after each domain",
        "Read a column downwards: numbers that fall are forgetting. Rows are stages, columns test domains.",
        (Block(caption + context.left_out(shown), pictures=tuple(pictures)),),
    )


def forgetting(context: Context) -> Section | None:
    """How much was forgotten, by method and by domain."""
    finished = tuple(v for v in context.lines if v.last is not None)
    blocks = []
    if finished:
        bars = [figures.Bar(v, (v.last, v.forgetting)) for v in finished]
        titles = ("At the end, %", "Forgotten, points")
        label = "Bars: " + "; ".join(
            f"{v.label} ends at {_one(v.last)} % and forgot {_one(v.forgetting)} points" for v in finished
        )
        wide, narrow = (figures.bars(bars, titles, context.palette, narrow=n) for n in (False, True))
        caption = (
            "Left: accuracy on all domains after the last one. Right: forgetting. A good method has a long bar "
            "on the left and a short one on the right." + context.left_out(context.lines)
        )
        blocks.append(Block(caption, pictures=(context.picture(label, wide, narrow, name="forgetting"),)))
    kept = [
        (v, rows)
        for v in context.multiples
        if not v.only_at_the_end and 0 < len(rows := v.kept()) <= heatmaps.MOST_CELLS
    ]
    if kept:
        span = figures.room([x for _, rows in kept for row in rows for x in (row.learned, row.end)])
        pictures = tuple(
            context.picture(
                f"{v.label}, accuracy when learned and at the end: "
                + "; ".join(f"{r.domain} {r.learned:.1f} to {r.end:.1f}" for r in rows),
                figures.kept(v, rows, context.palette, span),
                name=f"kept {v.label}",
            )
            for v, rows in kept
        )
        caption = (
            "Ring: accuracy on a domain when it was learned (or first tested), %. Disc: after the last domain. "
            "Number: the change. Means over all orders and seeds."
        )
        blocks.append(Block(caption, pictures=pictures))
    if not blocks:
        return None
    return Section("forgetting", "What was forgotten", "", tuple(blocks))


def price(context: Context) -> Section | None:
    """Accuracy against what a method costs."""
    finished = [v for v in context.lines if v.last is not None]
    if len(finished) < 2:
        return None
    axes = (
        ("parameters", "parameters", lambda r: r.price.parameters or None),
        ("kept state", "kept state, bytes", lambda r: r.price.state_bytes or None),
        ("backbone passes an image", "backbone passes an image", lambda r: r.price.inference_passes),
        ("seconds of a run", "seconds of a run", lambda r: r.seconds or None),
    )
    pictures = []
    for name, title, value in axes:
        priced = [(v, stat) for v in finished if (stat := v.stat(value)) is not None]
        if len(priced) < 2:
            continue
        figure = figures.scatter([v for v, _ in priced], [s for _, s in priced], context.palette, title)
        label = f"Accuracy at the end against {name}: " + "; ".join(
            f"{v.label} {_one(v.last)} % for {parts.si(s.mean)}" for v, s in priced
        )
        pictures.append(context.picture(label, figure, name=f"accuracy against {name}"))
    if not pictures:
        return None
    return Section(
        "price",
        "What accuracy costs",
        "Up is better, left is cheaper.",
        (Block(context.left_out(context.lines).strip(), pictures=tuple(pictures)),),
    )


Builder = Callable[[Context], Section | None]
SECTIONS: tuple[Builder, ...] = (
    headline,
    curves,
    orders,
    forgetting,
    matrices,
    ablation,
    upper_bound,
    robustness,
    phases,
    space,
    time,
    price,
)


def _chapter(context: Context, number: int, builders: Sequence[Builder]) -> Chapter:
    group = context.group
    made = tuple(section for builder in builders if (section := builder(context)) is not None)
    if context.files is not None:
        _write_tables(context.files, made)
    return Chapter(f"s{number + 1}", group.stream, group.backbone, reading.sentence(group), _notes(group), made)


def _folder(files: Files | None, group: Group, grouped: Sequence[Group]) -> Files | None:
    """The folder of a chapter, named after its stream, and its backbone where there are several."""
    several = len({g.backbone for g in grouped}) > 1
    return files.below(f"{group.stream} {group.backbone}" if several else group.stream) if files else None


def _write_tables(files: Files, sections: Sequence[Section]) -> None:
    for section in sections:
        for block in section.blocks:
            if block.table is not None:
                files.table(block.table)


def _notes(group: Group) -> tuple[str, ...]:
    """What a careful reader must know before comparing."""
    notes = []
    prints = {run.result.data.fingerprint for run in group.runs}
    if len(prints) > 1:
        notes.append(f"The runs were made on {len(prints)} different splits or versions of the data.")
    for name, values in (
        ("devices", {run.result.device for run in group.runs}),
        ("precisions", {run.result.precision for run in group.runs}),
    ):
        if len(values) > 1:
            notes.append(f"The runs used different {name} ({', '.join(sorted(values))}): compare times with care.")
    seen: dict[tuple[object, ...], int] = {}
    for variant in group.variants:
        for run in variant.runs:
            key = (variant.label, tuple(run.result.order), run.result.seed)
            seen[key] = seen.get(key, 0) + 1
    doubled = sum(count - 1 for count in seen.values())
    if doubled:
        notes.append(
            f"{how_many(doubled, 'run')} with the method, order and seed of another: each counts in the means."
        )
    return tuple(notes)


def _title(grouped: Sequence[Group]) -> str:
    if len(grouped) == 1:
        return f"{grouped[0].stream}: learning domain after domain"
    return f"Learning domain after domain on {how_many(len({g.stream for g in grouped}), 'stream')}"


def _summary(runs: Sequence[Run], grouped: Sequence[Group]) -> str:
    done = sum(run.done for run in runs)
    methods = len({run.result.method for run in runs})
    text = f"{how_many(methods, 'method')}, {how_many(len(runs), 'run')}"
    if done < len(runs):
        text += f" ({done} finished)"
    if len(grouped) == 1:
        text += f", {how_many(len(grouped[0].order), 'domain')}, backbone {grouped[0].backbone}"
    return text


def _matrix_label(name: str, last: str, columns: Sequence[str], row: Sequence[float | None]) -> str:
    cells = "; ".join(f"{c} {v:.1f} %" for c, v in zip(columns, row, strict=True) if v is not None)
    return f"Accuracy matrix of {name}. After learning {last}: {cells}"


def _one(stat: Stat | None) -> str:
    return f"{stat.mean:.1f}" if stat else "NA"


__all__ = ["SECTIONS", "Builder", "Variant", "report"]
