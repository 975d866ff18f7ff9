"""Grids: methods x streams x orders x seeds x any parameters, written in one YAML file.

Every axis is a list. An entry of an axis is a name, or a mapping of settings of a run (dots lead into sections) that
may have a ``grid`` of its own. Settings of a later axis win over those of an earlier one, in the order of ``Grid``'s
fields.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from ductwork.data.streams import available, orders_of
from ductwork.errors import ConfigError, GridError, suggest
from ductwork.experiments.config import RunConfig, override, read_yaml
from ductwork.methods import registry
from ductwork.validation import validate

Values = dict[str, Any]
Entry = str | Values
Orders = list[int | list[str]] | Literal["all"]
Item = TypeVar("Item")


class Grid(BaseModel):
    """Many runs. Only ``methods`` must be given."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    defaults: Values = Field(default_factory=dict, description="settings of every run, as in a run's own file")
    streams: list[Entry] = Field(["demo"], min_length=1, description="names or folders; a mapping may have `orders`")
    orders: Orders | None = Field(None, description="numbers of predefined orders, lists of domains, or all")
    seeds: list[int] = Field([1993], min_length=1, description="seeds of everything that is drawn")
    backbones: list[Entry] = Field(["glyph_vit"], min_length=1, description="names of backbones")
    grid: dict[str, list[Any]] = Field(default_factory=dict, description="lists of values of any other setting")
    methods: list[Entry] = Field(min_length=1, description="names of methods; a mapping may have recipe and params")
    overrides: Values = Field(
        default_factory=dict,
        description="settings of every run that win over all others; params reach the methods that have them",
    )


def load_grid(path: Path, pairs: Sequence[str] = ()) -> Grid:
    """A grid from a YAML file and ``key=value`` pairs, each of a key of the grid or of a setting of every run."""
    placed = []
    for pair in pairs:
        first = pair.partition("=")[0].split(".")[0]
        placed.append(f"overrides.{pair}" if first in RunConfig.model_fields else pair)
    try:
        return validate(Grid, override(_with_base(path), placed), str(path))
    except ConfigError as error:
        raise GridError(error.problems) from None


def _with_base(path: Path, above: tuple[Path, ...] = ()) -> Values:
    """The keys of a grid on top of those of the grid that it names as its ``base``."""
    values = read_yaml(path, "ductwork bench")
    base = values.pop("base", None)
    if base is None:
        return values
    if not isinstance(base, str):
        raise ConfigError(f"{path}: base must be the name of a grid's file, not {_short(base)}")
    below = path.parent / base
    if below.resolve() in (path.resolve(), *above):
        raise ConfigError(f"{path}: its base {base} leads back to it")
    return {**_with_base(below, (path.resolve(), *above)), **values}


def expand(grid: Grid) -> list[Values]:
    """The settings of every run that a grid stands for, in the order in which they are worth doing."""
    problems: list[str] = []
    axes = [
        _layers(grid.streams, lambda entry: _streams(entry, grid.orders), problems),
        [{"seed": seed} for seed in grid.seeds],
        _layers(grid.backbones, lambda entry: _entries(entry, "backbone"), problems),
        _layers([grid.grid], lambda points: _points(points, "grid"), problems),
        _layers(grid.methods, lambda entry: _entries(entry, "method"), problems),
    ]
    runs = []
    for layers in itertools.product(*axes):
        try:
            values = _stacked([grid.defaults, *layers])
            runs.append(_stacked([values, _fitting(grid.overrides, values.get("method"))]))
        except ConfigError as error:
            problems.append(str(error))
    problems += _strays(grid.overrides, {str(values.get("method")) for values in runs})
    if problems:
        raise GridError(problems)
    return runs


def _fitting(overrides: Values, method: object) -> Values:
    """Overrides as they fit a method: those of its hyper-parameters, of which others have other ones."""
    params = overrides.get("params")
    if not isinstance(params, dict):
        return overrides
    known = _parameters({str(method)})
    return {**overrides, "params": {key: value for key, value in params.items() if key in known}}


def _strays(overrides: Values, methods: Iterable[str]) -> list[str]:
    """Overrides that would be ignored, since no method has such a parameter."""
    params, known = overrides.get("params"), _parameters(methods)
    strays = [key for key in params if key not in known] if isinstance(params, dict) else []
    return [f"no method of the grid has a parameter {key!r}{suggest(key, known)}" for key in strays]


def _parameters(methods: Iterable[str]) -> set[str]:
    known = registry.methods()
    return {name for method in methods if method in known for name in known[method].Config.model_fields}


def _layers(entries: Iterable[Item], each: Callable[[Item], Iterator[Values]], problems: list[str]) -> list[Values]:
    """All layers of an axis; what is wrong with an entry is put down in ``problems``."""
    result: list[Values] = []
    for entry in entries:
        try:
            result.extend(each(entry))
        except ConfigError as error:
            problems.append(str(error))
    return result


def _entries(entry: Entry, key: str) -> Iterator[Values]:
    """The layers of one entry: one, or as many as its own ``grid`` has points."""
    if isinstance(entry, str):
        yield {key: entry}
        return
    if key not in entry:
        raise ConfigError(f"an entry of `{key}s` lacks {key!r}: {_short(entry)}")
    own = {name: value for name, value in entry.items() if name != "grid"}
    grid = entry.get("grid") or {}
    if not isinstance(grid, dict):
        raise ConfigError(f"{key} {entry[key]}: grid must hold `setting: [values]` lines, not {_short(grid)}")
    for point in _points(grid, f"{key} {entry[key]}: grid"):
        yield _stacked([own, point])


def _streams(entry: Entry, orders: Orders | None) -> Iterator[Values]:
    """A stream in each of its orders: its own ones, or those of the grid."""
    for layer in _entries(entry, "stream"):
        own = layer.pop("orders", orders)
        name = str(layer["stream"])
        if own == "all":
            if name not in available():
                raise ConfigError(f"stream {name}: orders: all is for named streams; write lists of domains")
            own = list(range(1, len(orders_of(name)) + 1))
        if own is not None and not (isinstance(own, list) and own):
            raise ConfigError(f"stream {name}: orders must be a list or `all`, not {_short(own)}")
        if own is None or "order" in layer:
            yield layer
            continue
        for order in own:
            yield {**layer, "order": order}


def _points(grid: Mapping[str, Any], where: str) -> Iterator[Values]:
    """Every combination of the values of a grid; one empty point where there is no grid."""
    for key, values in grid.items():
        first = str(key).split(".")[0]
        if first not in RunConfig.model_fields:
            raise ConfigError(f"{where}: unknown key {key!r}{suggest(first, RunConfig.model_fields)}")
        if not (isinstance(values, list) and values):
            raise ConfigError(f"{where}: {key} must be a list of values, not {_short(values)}")
    for combination in itertools.product(*grid.values()):
        yield dict(zip(grid, combination, strict=True))


def _stacked(layers: Sequence[Values]) -> Values:
    """Settings laid on top of each other; sections (``params``, ``engine``) are merged, everything else replaced."""
    result: Values = {}
    for layer in layers:
        for key, value in layer.items():
            *sections, last = str(key).split(".")
            at = result
            for section in sections:
                at = at.setdefault(section, {})
                if not isinstance(at, dict):
                    raise ConfigError(f"{key!r}: {section!r} is a value, not a section")
            if isinstance(value, dict) and isinstance(at.get(last), dict):
                at[last] = {**at[last], **value}
            else:
                at[last] = copy.deepcopy(value)
    return result


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
