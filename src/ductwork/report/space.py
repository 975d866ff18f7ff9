"""The space that test images lie in, before a run and after it, flattened by t-SNE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ductwork.experiments.results import Embedding
from ductwork.report import style
from ductwork.report.aggregate import Variant
from ductwork.report.collect import Run
from ductwork.report.content import MOST_LINES, Block, Context, Picture, Section, in_words
from ductwork.report.figures import THIRD
from ductwork.report.parts import Canvas, Panel, legend_rows
from ductwork.report.style import styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Methods whose spaces are drawn: a map takes more than half a second.
MOST_SPACES = 2
_SEED, _PERPLEXITY, _STEPS, _NEIGHBOURS = 0, 30.0, 500, 9
_GRID = 72
_MARKERS = "o^"

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Map:
    """Points in the plane, within 0..1: what they are, whence they come, and what a classifier says of them."""

    places: Floats
    labels: Ints
    domain_of: Ints
    said: Ints
    classes: tuple[str, ...]
    domains: tuple[str, ...]

    @property
    def right(self) -> float:
        """Share of points whose class is said, in per cent."""
        return 100.0 * float(np.mean(self.said == self.labels))


def space(context: Context) -> Section | None:
    """Where test images lay in the pre-trained space and lie in the learned one, with the regions of the classes."""
    candidates = sorted(context.multiples, key=lambda v: v.method != "duct")
    found = [(v, run, e) for v in candidates for run, e in [_first(context, v)] if run is not None and e is not None]
    # Of a backbone that was never trained the picture before is the picture after.
    found = [(v, run, e) for v, run, e in found if not np.array_equal(e.before, e.after)] or found[:1]
    shown = [(v, run, _two_domains(e, run.result.order)) for v, run, e in found]
    shown = shown[: MOST_SPACES if context.panels >= MOST_LINES // 2 else 1]
    if not shown:
        return None
    _, run, first = shown[0]
    pictures = [_picture(context, flatten(first.before, first, first.said_before), "before", "pre-trained")]
    pictures += [_picture(context, flatten(e.after, e, e.said_after), "after", v.label) for v, _, e in shown]
    lead = "Each sign is a test image; its neighbours in the picture are its neighbours in the space of features."
    return Section(
        "space", "The space before and after", lead, (Block(_caption(first, run), pictures=tuple(pictures)),)
    )


def _picture(context: Context, one: Map, when: str, what: str) -> Picture:
    right = f"{one.right:.0f} % right"
    label = (
        f"t-SNE {when} learning, {what}: {len(one.labels)} test images of {len(one.classes)} classes and of "
        f"{' and '.join(one.domains)}; {right}"
    )
    return context.picture(label, draw(one, f"{when.capitalize()}: {what}", right), name=f"t-sne {when} {what}")


def _first(context: Context, variant: Variant) -> tuple[Run | None, Embedding | None]:
    for run in variant.of_order(context.group.order):
        found = run.embedding()
        if found is not None and len(found) > 3:
            return run, found
    return None, None


def _caption(kept: Embedding, run: Run) -> str:
    signs = " and ".join(f"{sign} {name}" for sign, name in zip(("circles", "triangles"), kept.domains, strict=False))
    return (
        f"{signs[0].upper()}{signs[1:]}; colours are classes. A region has the colour of the class that the classifier "
        f"says there: before, that of class centres in the pre-trained space; after, the method's own, choosing among "
        f"these classes. Signs that are not filled are images that it gets wrong. Order: {in_words(run.result.order)}, "
        f"seed {run.result.seed}."
    )


def _two_domains(found: Embedding, order: Sequence[str]) -> Embedding:
    """The first and the last domain: more than two kinds of signs cannot be told apart."""
    ranked = sorted(found.domains, key=lambda name: order.index(name) if name in order else len(order))
    ends = list(dict.fromkeys((ranked[0], ranked[-1])))
    numbers = [found.domains.index(name) for name in ends]
    keep = np.isin(found.domain_of, numbers)
    domain_of = np.array([numbers.index(n) for n in found.domain_of[keep]], dtype=np.int64)
    return Embedding(
        found.classes,
        tuple(ends),
        found.labels[keep],
        domain_of,
        found.before[keep],
        found.after[keep],
        found.said_before[keep],
        found.said_after[keep],
    )


def flatten(features: npt.NDArray[np.float32], kept: Embedding, said: Ints) -> Map:
    """t-SNE of the directions of features ``[n, d]``, since cosine classifiers look at nothing else."""
    # Imported here: a report without such a figure shall not wait for it.
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    finite = np.nan_to_num(features.astype(np.float64))
    directions = finite / np.maximum(np.linalg.norm(finite, axis=1, keepdims=True), 1e-12)
    # Points that are all the same have no principal components, and scikit-learn does not survive that.
    directions += np.random.default_rng(_SEED).normal(scale=1e-7, size=directions.shape)
    perplexity = min(_PERPLEXITY, (len(features) - 1) / 3)
    t_sne = TSNE(random_state=_SEED, perplexity=perplexity, init="pca", max_iter=_STEPS)
    with threadpool_limits(1):  # so little work is ten times slower when threads share it, and not the same to the bit
        places = np.asarray(t_sne.fit_transform(directions), dtype=np.float64)
    low, high = places.min(0), places.max(0)
    places = 0.04 + 0.92 * (places - low) / np.maximum(high - low, 1e-9)
    return Map(places, kept.labels, kept.domain_of, said, kept.classes, kept.domains)


@styled
def draw(one: Map, title: str, note: str) -> Figure:
    """Regions, and signs on them; names of classes where most of their images are."""
    colours = style.class_colours(len(one.classes))
    names = [f"{sign} {name}" for sign, name in zip("●▲", one.domains, strict=False)]
    side = THIRD - 2
    canvas = Canvas(THIRD, side + 22 + 13 * legend_rows(names, THIRD))
    panel = Panel(canvas, 1, 1, side, side, (0.0, 1.0), (0.0, 1.0))
    _regions(panel, one, colours)
    for domain in range(len(one.domains)):
        for label, colour in enumerate(colours):
            here = (one.domain_of == domain) & (one.labels == label)
            _signs(panel, one.places[here & (one.said == label)], colour, _MARKERS[domain], colour)
            _signs(panel, one.places[here & (one.said != label)], colour, _MARKERS[domain], style.CARD)
    for label, name in enumerate(one.classes):
        _class_name(panel, one.places[one.labels == label], style.shorten(name, 60))
    canvas.heading(title, None, note)
    for number, (name, at) in enumerate(zip(one.domains, _along(one.domains), strict=True)):
        y = canvas.height - 25
        canvas.line([at + 4], [y], style.MUTED, marker=_MARKERS[number], markersize=5, linestyle="")
        canvas.text(at + 12, y, style.shorten(name, 100), colour=style.MUTED)
    return canvas.figure


def _along(names: Sequence[str]) -> list[float]:
    starts, x = [], 1.0
    for name in names:
        starts.append(x)
        x += 26 + style.text_width(style.shorten(name, 100))
    return starts


def _regions(panel: Panel, one: Map, colours: Sequence[str]) -> None:
    """What is said of most of the nearest points, cell by cell; cells of a row that agree are one rectangle."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    said = _said_at(one)
    boxes: dict[int, list[Path]] = {}
    size = 1.0 / _GRID
    for row in range(_GRID):
        edges = [0, *(np.flatnonzero(np.diff(said[row])) + 1).tolist(), _GRID]
        for start, stop in pairwise(edges):
            corners = [(start, row), (stop, row), (stop, row + 1), (start, row + 1), (start, row)]
            path = Path([(panel.x(x * size), panel.y(y * size)) for x, y in corners], closed=True)
            boxes.setdefault(int(said[row, start]), []).append(path)
    for label, paths in sorted(boxes.items()):
        patch = PathPatch(Path.make_compound_path(*paths), facecolor=colours[label], alpha=0.2, gid=style.CRISP)
        panel.canvas.add(patch)


def _said_at(one: Map) -> Ints:
    """The majority among the nearest points of the centre of each cell ``[rows, columns]``."""
    centres = (np.arange(_GRID) + 0.5) / _GRID
    cells = np.stack(np.meshgrid(centres, centres), axis=-1).reshape(-1, 2)
    distance = ((cells[:, None] - one.places[None]) ** 2).sum(-1)
    nearest = np.argpartition(distance, min(_NEIGHBOURS, len(one.places)) - 1, axis=1)[:, :_NEIGHBOURS]
    votes = np.zeros((len(cells), len(one.classes)))
    near = np.take_along_axis(distance, nearest, axis=1)
    rows = np.repeat(np.arange(len(cells)), nearest.shape[1])
    np.add.at(votes, (rows, one.said[nearest].ravel()), 1 / (near.ravel() + 1e-4))  # near points count for more
    winners: Ints = votes.argmax(1).reshape(_GRID, _GRID)
    return winners


def _signs(panel: Panel, places: Floats, colour: str, marker: str, inner: str) -> None:
    if len(places):
        panel.dots(
            [(float(x), float(y)) for x, y in places],
            colour,
            marker,
            4.2,
            markerfacecolor=inner,
            markeredgecolor=colour if inner == style.CARD else style.CARD,
            markeredgewidth=0.9 if inner == style.CARD else 0.4,
        )


def _class_name(panel: Panel, places: Floats, name: str) -> None:
    if not len(places):
        return
    # The point with the nearest neighbours of its own class: the middle may lie between two clusters.
    distance = ((places[:, None] - places[None]) ** 2).sum(-1)
    x, y = places[np.sort(distance, axis=1)[:, : max(2, len(places) // 4)].sum(1).argmin()]
    width = style.text_width(name, style.SMALL, bold=True) + 5
    left = min(max(panel.x(float(x)) - width / 2, panel.left), panel.right - width)
    panel.canvas.box(left, panel.y(float(y)) - 5.5, width, 11, style.CARD, alpha=0.85, zorder=2.5)
    panel.canvas.text(left + width / 2, panel.y(float(y)), name, "center", bold=True)
