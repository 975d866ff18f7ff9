"""What can be known of runs before the first batch: everything is opened and built once, and all problems are found."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ductwork.backbones import registry as backbones
from ductwork.backbones.base import Backbone
from ductwork.data.domain import Stream
from ductwork.data.folders import verify_readable
from ductwork.data.incremental import by_classes
from ductwork.data.streams import available, open_stream, orders_of
from ductwork.data.transforms import resolve
from ductwork.errors import BackboneError, ConfigError, DuctworkError, GridError
from ductwork.experiments.config import RunConfig
from ductwork.experiments.results import BackboneRecord, DataRecord, RunResult
from ductwork.experiments.trackers import check
from ductwork.experiments.watch import title
from ductwork.methods import registry
from ductwork.methods.base import Method, MethodConfig


@dataclass(frozen=True)
class Inspected:
    """A run that can be done, or whose method cannot work on its backbone."""

    config: RunConfig
    blank: RunResult
    """Its result before it has begun."""
    images: int
    """Training images of all its domains."""
    obstacle: str | None = None


def inspect(configs: Sequence[RunConfig]) -> list[Inspected]:
    """All runs, or a GridError with all that is wrong with them."""
    inspector = _Inspector()
    found = [inspector.inspect(config) for config in configs]
    inspected = [one for one in found if one is not None]
    inspector.problems += _twice(inspected)
    if inspector.problems:
        raise GridError(inspector.problems)
    return inspected


@dataclass
class _Inspector:
    """Remembers what it has opened: a grid of a hundred runs has a few streams and backbones."""

    problems: list[str] = field(default_factory=list)
    _whole: dict[str, Stream | None] = field(default_factory=dict)
    _streams: dict[str, Stream | None] = field(default_factory=dict)
    _backbones: dict[str, Backbone | None] = field(default_factory=dict)
    _methods: dict[str, tuple[dict[str, Any], str | None] | None] = field(default_factory=dict)

    def inspect(self, config: RunConfig) -> Inspected | None:
        engine = config.engine
        if engine.devices * engine.nodes > 1:
            self.problems.append("engine.devices and engine.nodes: each run of a grid has one device; leave them out")
        try:
            check(config.track)
        except ConfigError as error:
            self._report(error)
        stream = self._stream(config)
        backbone = self._backbone(config)
        method = self._method(config, stream, backbone)
        if stream is None or backbone is None or method is None:
            return None
        params, obstacle = method
        blank = RunResult(
            method=config.method,
            recipe=config.recipe,
            params=params,
            stream=stream.name,
            order=list(stream.order),
            seed=config.seed,
            backbone=BackboneRecord(
                name=backbone.name, sha256=backbone.sha256, parameters=sum(p.numel() for p in backbone.parameters())
            ),
            # the fingerprint of a run that begins is taken by that run; it looks at every file
            data=DataRecord(fingerprint=stream.fingerprint if obstacle else "", classes=len(stream.classes)),
        )
        return Inspected(config, blank, sum(len(domain.train) for domain in stream), obstacle)

    def _stream(self, config: RunConfig) -> Stream | None:
        key = _key(config, "stream", "root", "split", "split_seed", "order", "increment")
        if key not in self._streams:
            try:
                self._streams[key] = self._open(config)
            except DuctworkError as error:
                self._streams[key] = None
                self._report(error)
        return self._streams[key]

    def _open(self, config: RunConfig) -> Stream:
        """A stream in its order. Large ones are listed once, not once for each order."""
        options: dict[str, Any] = {"root": config.root, "split": config.split, "seed": config.split_seed}
        key = _key(config, "stream", "root", "split", "split_seed")
        if key not in self._whole:
            try:
                opened = open_stream(config.stream, **options)
                verify_readable(opened)
                self._whole[key] = opened
            except DuctworkError:  # may be about a domain that no order names
                self._whole[key] = None
        whole, names = self._whole[key], _named(config)
        if whole is not None and names is not None and len({*names}) == len(names) and {*names} <= {*whole.order}:
            stream = whole.reordered(names)
        else:
            stream = open_stream(config.stream, order=config.order, **options)
            verify_readable(stream)
        return stream if config.increment is None else by_classes(stream, config.increment)

    def _backbone(self, config: RunConfig) -> Backbone | None:
        key = _key(config, "backbone", "weights", "image_size")
        if key not in self._backbones:
            try:
                self._backbones[key] = backbones.create(
                    config.backbone, weights=config.weights, input_size=config.image_size
                )
            except DuctworkError as error:
                self._backbones[key] = None
                self._report(error)
        return self._backbones[key]

    def _method(
        self, config: RunConfig, stream: Stream | None, backbone: Backbone | None
    ) -> tuple[dict[str, Any], str | None] | None:
        """The resolved hyper-parameters, and why the method cannot work on the backbone."""
        place = stream.name if stream else config.stream
        key = _key(config, "method", "recipe", "params", "transform", "backbone", "weights", "image_size") + place
        if key not in self._methods:
            self._methods[key] = None
            try:
                kind = registry.find(config.method)
                settings = registry.configure(kind, config.recipe, place, config.params)
                if backbone is not None:
                    wanted = stream.transform if stream and config.transform == "auto" else config.transform
                    resolve("backbone" if wanted == "auto" else wanted, backbone_config=backbone.data_config)
                    obstacle = _obstacle(kind, settings, backbone)
                    self._methods[key] = settings.model_dump(mode="json"), obstacle
            except DuctworkError as error:
                self._report(error)
        return self._methods[key]

    def _report(self, error: DuctworkError) -> None:
        self.problems += error.problems if isinstance(error, ConfigError) else [str(error)]


def _obstacle(kind: type[Method], settings: MethodConfig, backbone: Backbone) -> str | None:
    try:
        kind.check(backbone)
        kind(settings, copy.deepcopy(backbone))  # some see only then what their settings need
    except BackboneError as error:
        return str(error)
    return None


def _named(config: RunConfig) -> Sequence[str] | None:
    """The domains that a run's order names, as far as that can be said without opening the stream."""
    if isinstance(config.order, int):
        orders = orders_of(config.stream) if config.stream in available() else ()
        return orders[config.order - 1] if 1 <= config.order <= len(orders) else None
    if config.order is None and config.stream in available():
        return orders_of(config.stream)[0]
    return config.order


def _twice(runs: Sequence[Inspected]) -> list[str]:
    """Runs that are written in different ways and are the same."""
    seen: dict[str, RunConfig] = {}
    problems = []
    for run in runs:
        facts = run.config.identity() | {"order": run.blank.order, "params": run.blank.params}
        first = seen.setdefault(json.dumps(facts, sort_keys=True), run.config)
        if first is not run.config:
            problems.append(f"two runs are the same: {title(first)}, and {title(run.config)}")
    return problems


def _key(config: RunConfig, *names: str) -> str:
    return json.dumps([getattr(config, name) for name in names], sort_keys=True, default=str)
