"""From runs to what is compared: groups (one stream, one backbone), variants of methods in them, and their means."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ductwork.experiments.results import RunResult, StageRecord
from ductwork.report.collect import Run

# The upper bound has all images of all domains at once: it is measured like a method, and does not compete with any.
BOUND = "joint"


@dataclass(frozen=True)
class Stat:
    """Mean and population standard deviation of ``n`` numbers."""

    mean: float
    std: float
    n: int

    @staticmethod
    def of(values: Iterable[float | None]) -> Stat | None:
        """Of the finite values; ``None`` when there are none."""
        kept = [float(v) for v in values if v is not None and math.isfinite(v)]
        if not kept:
            return None
        if min(kept) == max(kept):  # Rounding must not invent a deviation.
            return Stat(kept[0], 0.0, len(kept))
        mean = math.fsum(kept) / len(kept)
        return Stat(mean, math.sqrt(math.fsum((v - mean) ** 2 for v in kept) / len(kept)), len(kept))


@dataclass(frozen=True)
class Matrix:
    """Accuracy on ``columns`` (test domains) after learning each of ``rows``; ``None`` where not seen yet."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    runs: int


@dataclass(frozen=True)
class Kept:
    """Accuracy on one test domain when it was learned (or first tested) and after the last domain."""

    domain: str
    learned: float
    end: float


@dataclass(frozen=True)
class Variant:
    """A method with its settings: the runs that differ only in order and seed."""

    method: str
    label: str
    runs: tuple[Run, ...]

    @cached_property
    def done(self) -> tuple[Run, ...]:
        return tuple(run for run in self.runs if run.done)

    @cached_property
    def shown(self) -> tuple[Run, ...]:
        """The runs that figures draw: finished ones, or else whatever has a stage."""
        return self.done or tuple(run for run in self.runs if run.result.stages)

    @property
    def competes(self) -> bool:
        return self.method != BOUND

    @cached_property
    def only_at_the_end(self) -> bool:
        """Whether nothing was trained before the last stage, so that what was measured on the way means nothing."""
        return bool(self.shown) and all(run.result.params.get("last_only") is True for run in self.shown)

    @property
    def status(self) -> str:
        """Empty when every run is done; otherwise what happened to the others."""
        counts = Counter(run.result.status.replace("-", " ") for run in self.runs if not run.done)
        if not counts:
            return ""
        if len(self.runs) == 1:
            return self.runs[0].progress
        return ", ".join(f"{count} of {len(self.runs)} {words}" for words, count in sorted(counts.items()))

    def stat(self, value: Callable[[RunResult], float | None]) -> Stat | None:
        """Over finished runs only: the mean of a run and half a run means nothing."""
        return Stat.of(value(run.result) for run in self.done)

    @cached_property
    def last(self) -> Stat | None:
        return self.stat(lambda r: r.A_B)

    @cached_property
    def average(self) -> Stat | None:
        return None if self.only_at_the_end else self.stat(lambda r: r.A_bar)

    @cached_property
    def forgetting(self) -> Stat | None:
        return None if self.only_at_the_end else self.stat(lambda r: r.forgetting)

    @cached_property
    def curve(self) -> tuple[Stat | None, ...]:
        """``A_b`` at each stage; level where only the last stage counts."""
        length = max((len(run.result.stages) for run in self.shown), default=0)
        if self.only_at_the_end:
            return (self.last,) * length if self.last else ()
        return tuple(
            Stat.of(r.result.stages[i].A_b for r in self.shown if i < len(r.result.stages)) for i in range(length)
        )

    def of_order(self, order: Sequence[str]) -> tuple[Run, ...]:
        """The runs in ``order``; if there are none, those in the variant's own most frequent order."""
        same = tuple(run for run in self.shown if run.result.order == list(order))
        if same or not self.shown:
            return same
        own = common_order(self.shown)
        return tuple(run for run in self.shown if run.result.order == list(own))

    def matrix(self, order: Sequence[str]) -> Matrix:
        """The mean over the runs of one order: rows of different orders are not the same thing."""
        runs = self.of_order(order)
        results = [run.result for run in runs]
        length = max((len(r.stages) for r in results), default=0)
        rows = tuple(next(r.stages[i].domain for r in results if i < len(r.stages)) for i in range(length))
        columns = test_domains(results)
        values = tuple(
            tuple(_mean(r.stages[i].accuracy.get(c) for r in results if i < len(r.stages)) for c in columns)
            for i in range(length)
        )
        return Matrix(rows, columns, values, len(runs))

    def kept(self) -> tuple[Kept, ...]:
        """For each test domain, its accuracy when learned and at the end, over all orders: names allow it."""
        learned: dict[str, list[float]] = defaultdict(list)
        end: dict[str, list[float]] = defaultdict(list)
        for run in self.shown:
            for domain in test_domains([run.result]):
                pair = _learned_and_end(run.result.stages, domain)
                if pair is not None:
                    learned[domain].append(pair[0])
                    end[domain].append(pair[1])
        return tuple(
            Kept(name, math.fsum(values) / len(values), math.fsum(end[name]) / len(values))
            for name, values in learned.items()
        )

    def phase_seconds(self) -> dict[str, float]:
        """Mean seconds by phase over the runs; what no phase accounts for is ``other``."""
        total: dict[str, float] = defaultdict(float)
        for run in self.shown:
            phases: dict[str, float] = defaultdict(float)
            for stage in run.result.stages:
                for phase, seconds in stage.seconds.items():
                    phases[phase] += seconds if math.isfinite(seconds) else 0.0
            phases["other"] += max(0.0, run.result.seconds - math.fsum(phases.values()))
            for phase, seconds in phases.items():
                total[phase] += seconds / len(self.shown)
        return {phase: seconds for phase, seconds in total.items() if seconds > 0}


@dataclass(frozen=True)
class Group:
    """Runs that may be compared: the same stream and the same backbone."""

    stream: str
    backbone: str
    variants: tuple[Variant, ...]

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        return tuple(run for variant in self.variants for run in variant.runs)

    @cached_property
    def drawn(self) -> tuple[Variant, ...]:
        """Variants with at least one stage, best first."""
        return tuple(variant for variant in self.variants if variant.shown and variant.curve)

    @cached_property
    def order(self) -> tuple[str, ...]:
        """The order that most runs share: matrices are drawn in it, so that methods can be compared."""
        return common_order([run for variant in self.drawn for run in variant.shown] or self.runs)

    @property
    def one_order(self) -> bool:
        return len({tuple(run.result.order) for run in self.runs}) == 1

    def first_of_methods(self, limit: int) -> tuple[Variant, ...]:
        """At most ``limit`` variants: the best of each method before second ones of any, best first."""
        seen: Counter[str] = Counter()
        ranked = []
        for position, variant in enumerate(self.drawn):
            ranked.append((seen[variant.method], position))
            seen[variant.method] += 1
        chosen = sorted(position for _, position in sorted(ranked)[:limit])
        return tuple(self.drawn[position] for position in chosen)


def groups(runs: Sequence[Run]) -> list[Group]:
    """Runs by stream and backbone, each with its variants ranked by ``A_B``; the groups with most runs first."""
    by_group: dict[tuple[str, str, str], list[Run]] = defaultdict(list)
    for run in runs:
        backbone = run.result.backbone
        by_group[run.result.stream, backbone.name, backbone.sha256].append(run)
    made = [Group(stream, name, _variants(members)) for (stream, name, _), members in by_group.items()]
    return sorted(made, key=lambda g: (-len(g.runs), g.stream, g.backbone))


def test_domains(results: Sequence[RunResult]) -> tuple[str, ...]:
    """Test domains: those of the order first, then a stream's own ones in the order they appear."""
    tested: dict[str, None] = {}
    for result in results:
        for stage in result.stages:
            tested.update(dict.fromkeys(stage.accuracy))
    order = results[0].order if results else []
    return tuple(dict.fromkeys([*(name for name in order if name in tested), *tested]))


def common_order(runs: Sequence[Run]) -> tuple[str, ...]:
    counts = Counter(tuple(run.result.order) for run in runs)
    return min(counts, key=lambda order: (-counts[order], order)) if counts else ()


def _variants(runs: Sequence[Run]) -> tuple[Variant, ...]:
    by_method: dict[str, dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        settings = json.dumps([run.result.recipe, run.result.params], sort_keys=True, default=str)
        by_method[run.result.method][settings].append(run)
    made = [
        Variant(method, label, tuple(members))
        for method, settings in by_method.items()
        for members, label in zip(settings.values(), _labels(method, list(settings.values())), strict=True)
    ]
    return tuple(sorted(made, key=lambda v: (-v.last.mean if v.last else math.inf, not v.shown, v.label)))


def _labels(method: str, variants: Sequence[Sequence[Run]]) -> list[str]:
    """The method's name, with the settings in brackets that tell its variants apart."""
    if len(variants) == 1:
        return [method]
    settings = [{"recipe": v[0].result.recipe, **v[0].result.params} for v in variants]
    keys = sorted({key for one in settings for key in one})
    differing = [key for key in keys if len({json.dumps(one.get(key), default=str) for one in settings}) > 1]
    return [f"{method} ({', '.join(_setting(key, one[key]) for key in differing if key in one)})" for one in settings]


def _setting(key: str, value: object) -> str:
    return str(value) if key == "recipe" else f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"


def _learned_and_end(stages: Sequence[StageRecord], domain: str) -> tuple[float, float] | None:
    seen = [
        (stage.domain, stage.accuracy[domain])
        for stage in stages
        if domain in stage.accuracy and math.isfinite(stage.accuracy[domain])
    ]
    if not seen:
        return None
    learned = next((accuracy for name, accuracy in seen if name == domain), seen[0][1])
    return learned, seen[-1][1]


def _mean(values: Iterable[float | None]) -> float | None:
    stat = Stat.of(values)
    return stat.mean if stat else None
