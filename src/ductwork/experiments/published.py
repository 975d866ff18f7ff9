"""What the paper and the logs of its released code print, as data (``published.json``): facts with their source.

Printed values are kept even where they cannot be right; ``flag`` then says what is odd about them.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Literal

Metric = Literal["A_bar", "A_B", "forgetting"]


@dataclass(frozen=True)
class Source:
    """A table or a passage of the paper."""

    where: str
    what: str
    note: str


@dataclass(frozen=True)
class Fact:
    """One printed number. ``order`` is None for a mean over the five orders, ``value`` for what is printed as NA."""

    source: str
    method: str
    stream: str
    backbone: str
    metric: Metric
    value: float | None
    std: float | None = None
    order: int | None = None
    recipe: str | None = None
    flag: str = ""


@dataclass(frozen=True)
class Log:
    """One log of the released code: accuracy after each stage and, where it was written, what led to it.

    ``after`` has a mapping a stage, from phases to accuracy on the domains so far; row ``i`` of ``matrix`` the accuracy
    on each domain seen after stage ``i``, and of ``transport_cost`` the cost from stage ``i + 2`` to each earlier one.
    """

    version: str
    stream: str
    order: int
    backbone: str
    curve: list[float]
    A_bar: float
    forgetting: float
    after: list[dict[str, float]] = field(default_factory=list)
    matrix: list[list[float]] | None = None
    transport_cost: list[list[float]] | None = None
    flag: str = ""


@dataclass(frozen=True)
class Published:
    """All of it."""

    sources: Mapping[str, Source]
    orders: Mapping[str, tuple[tuple[str, ...], ...]]
    facts: tuple[Fact, ...]
    logs: tuple[Log, ...]

    def of(self, source: str, stream: str | None = None) -> tuple[Fact, ...]:
        """The facts of one source, in print order."""
        return tuple(f for f in self.facts if f.source == source and stream in (None, f.stream))

    def find(
        self,
        source: str,
        method: str,
        stream: str,
        metric: Metric,
        *,
        recipe: str | None = None,
        backbone: str | None = None,
    ) -> Fact | None:
        """The one fact that answers this, if there is one."""
        wanted = (method, stream, metric, recipe)
        return next(
            (
                f
                for f in self.facts
                if f.source == source
                and (f.method, f.stream, f.metric, f.recipe) == wanted
                and backbone in (None, f.backbone)
            ),
            None,
        )

    def order_number(self, stream: str, order: tuple[str, ...]) -> int | None:
        """Which of the paper's orders this is, counted from 1."""
        known = self.orders.get(stream, ())
        return known.index(order) + 1 if order in known else None


@functools.cache
def published() -> Published:
    """The file that comes with the package."""
    data = json.loads(files("ductwork.experiments").joinpath("published.json").read_text(encoding="utf-8"))
    return Published(
        sources={name: Source(**source) for name, source in data["sources"].items()},
        orders={stream: tuple(map(tuple, orders)) for stream, orders in data["orders"].items()},
        facts=tuple(Fact(**fact) for fact in data["facts"]),
        logs=tuple(Log(**log) for log in data["logs"]),
    )
