"""The learner: a method, a backbone and a session, and the domains it has seen. What ``ductwork.Learner`` is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch

from ductwork import __version__
from ductwork.backbones import registry as backbones
from ductwork.backbones.base import Backbone
from ductwork.data.augment import fast_train_transform
from ductwork.data.domain import Domain, ImageSet
from ductwork.data.images import FileSource
from ductwork.data.loading import Loader
from ductwork.data.transforms import TransformSpec, resolve, test_transform, train_transform
from ductwork.engine.bench import Bench
from ductwork.engine.checkpoint import State, Vault
from ductwork.engine.evaluate import Evaluation, Prediction, evaluate, predict
from ductwork.engine.loop import EpochLog, Snapshot
from ductwork.engine.progress import Progress
from ductwork.engine.session import Session, Work
from ductwork.engine.settings import EngineSettings
from ductwork.errors import CheckpointError, ConfigError
from ductwork.methods import registry
from ductwork.methods.base import Method
from ductwork.methods.heads import Rows


@dataclass
class StageReport:
    """What one stage did: the engine's side of a stage in ``result.json``."""

    domain: str
    n_train: int
    classes: int
    records: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    work: dict[str, int] = field(default_factory=dict)
    evaluation: dict[str, Any] | None = None


@dataclass
class Unfinished:
    """A stage in the middle: its report so far, the phases done, and training that was under way."""

    report: StageReport
    phases_done: int
    call: int | None = None
    snapshot: Snapshot | None = None


OnEpoch = Callable[[int, str, str, EpochLog], None]
Images = ImageSet | Domain | Iterable[Domain] | Mapping[str, ImageSet]


class Learner:
    """Learns domains one after another and predicts.

    Args:
        method: a name of ``ductwork list methods``.
        backbone: a name of ``ductwork list backbones``, any timm model, or a ready ``Backbone``.
        recipe: a named set of hyper-parameters; ``params`` are put on top of it.
        stream: name of the benchmark, for recipes that have values of its own for it.
        transform: a name of ``ductwork.data.transforms``; ``backbone`` is what the backbone was trained with.
        weights: a local file of pre-trained weights for the backbone.
        image_size: side of the images, if not the one that the backbone was trained with.
        seed: one seed for everything that is drawn.
        settings: devices, precision, workers, checkpoints.
        progress: who is told how far the work is.
        session: a session that was opened before, instead of ``settings`` and ``progress``.
    """

    def __init__(
        self,
        method: str = "duct",
        *,
        backbone: str | Backbone = "glyph_vit",
        recipe: str = "default",
        params: Mapping[str, Any] | None = None,
        stream: str = "",
        transform: str | TransformSpec = "backbone",
        weights: str | Path | None = None,
        image_size: int | None = None,
        seed: int = 1993,
        settings: EngineSettings | None = None,
        progress: Progress | None = None,
        session: Session | None = None,
    ) -> None:
        kind = registry.find(method)
        self.config = registry.configure(kind, recipe, stream, params)
        self.recipe, self.stream, self.seed = recipe, stream, seed
        if isinstance(backbone, str):
            backbone = backbones.create(backbone, weights=weights, input_size=image_size)
        kind.check(backbone)
        if isinstance(transform, str):
            transform = resolve(transform, backbone_config=backbone.data_config)
        self.transform = transform
        self.session = session or Session(settings, progress, backbone)
        self.method: Method = kind(self.config, backbone).to(self.session.device)
        self.reports: list[StageReport] = []
        self.library: dict[str, ImageSet] = {}
        """Training images of the domains learned so far, by domain, for methods that rehearse."""
        self._unfinished: Unfinished | None = None
        self._vault: Vault | None = None
        self._settled_meta: dict[str, Any] = {}

    # learning

    def learn(
        self,
        domain: Domain,
        *,
        tests: Mapping[str, ImageSet] | None = None,
        ahead: Mapping[str, ImageSet] | None = None,
        remaining: int = 0,
        on_epoch: OnEpoch | None = None,
    ) -> StageReport:
        """Learn one domain. Goes on where a killed learner with the same folder was.

        Args:
            domain: what to learn.
            tests: test sets that are measured at the end, all together in one pass.
            ahead: test sets of domains that are still to come, for forward transfer.
            remaining: how many domains will follow, if that is known.
            on_epoch: called with the stage's number, the domain, the phase and the log of each epoch.
        """
        number = len(self.reports) + 1
        report, start, resume = self._take_up(domain)
        bench = Bench(
            self.session,
            self.method,
            domain,
            number,
            seed=self.seed,
            train_transform=(fast_train_transform if self.session.cache else train_transform)(self.transform),
            test_transform=test_transform(self.transform),
            tests=tests or {},
            records=report.records,
            library={**self.library, domain.name: domain.train},
            remaining=remaining,
            title=f"[{number} {domain.name}]",
            save_epoch=lambda call, log, snapshot: self._after_epoch(report, at, call, log, snapshot, on_epoch),
        )
        phases = self.method.phases()
        for at, phase in enumerate(phases):
            if at < start:
                continue
            with self._counted(report, phase.name):
                bench.run(phase, resume if at == start else None)
            self._checkpoint("phase", Unfinished(report, at + 1))
        if tests:
            with self._counted(report, "evaluate"):
                found = evaluate(self.session, self.method, tests, test_transform(self.transform))
            report.evaluation = asdict(found)
            report.evaluation["after"] |= report.records.pop("after", {})
            if ahead:
                found = evaluate(self.session, self.method, ahead, test_transform(self.transform))
                report.records["ahead"] = found.accuracy
        self.method.end_stage()
        self.library[domain.name] = domain.train
        self.reports.append(report)
        self._unfinished = None
        self._checkpoint("stage", None)
        return report

    @property
    def unfinished(self) -> tuple[tuple[str, ...], str, int] | None:
        """Of a stage that was interrupted: the phases that are done, the one under way, and its epochs done."""
        left = self._unfinished
        if left is None:
            return None
        names = [phase.name for phase in self.method.phases()] + ["evaluate"]
        epoch = left.snapshot.epoch if left.snapshot else 0
        return tuple(names[: left.phases_done]), names[left.phases_done], epoch

    def _take_up(self, domain: Domain) -> tuple[StageReport, int, tuple[int, Snapshot] | None]:
        left, self._unfinished = self._unfinished, None
        if left is None:
            return StageReport(domain.name, len(domain.train), len(domain.classes)), 0, None
        if left.report.domain != domain.name:
            raise ConfigError(f"the checkpoint is in the middle of domain {left.report.domain!r}, not {domain.name!r}")
        resume = (left.call, left.snapshot) if left.call is not None and left.snapshot is not None else None
        return left.report, left.phases_done, resume

    @contextmanager
    def _counted(self, report: StageReport, name: str) -> Iterator[None]:
        """Add the time and the work of a phase to the report."""
        self._clock, self._phase = time.perf_counter(), name
        yield
        self._settle_time(report)
        # Work is added when the phase is complete, so that a resumed phase counts like an unbroken one.
        counts = torch.tensor([getattr(self.session.work, name) for name in self.session.work.names])
        for name, count in zip(self.session.work.names, self.session.sum(counts).tolist(), strict=True):
            report.work[name] = report.work.get(name, 0) + count
        self.session.work = Work()

    def _settle_time(self, report: StageReport) -> None:
        now = time.perf_counter()
        report.seconds[self._phase] = report.seconds.get(self._phase, 0.0) + now - self._clock
        self._clock = now

    # saving

    def keep_in(self, folder: Path) -> bool:
        """Save to ``folder`` while learning, and take up what lies there. True if there was something."""
        self._vault = Vault(folder)
        with self.session.ranks.together():
            state = self._vault.read()
        if state is not None:
            self.restore(state)
            self._settled_meta = state.meta
            return True
        self._checkpoint("stage", None)
        return False

    def save(self, folder: str | Path) -> None:
        """Write the learned state to a folder: safetensors and JSON, atomically."""
        if self.session.ranks.leads:
            Vault(Path(folder)).write(self.state())
        self.session.ranks.wait()

    @classmethod
    def load(
        cls, folder: str | Path, *, settings: EngineSettings | None = None, progress: Progress | None = None
    ) -> Learner:
        """A learner from what ``save`` wrote, or from the checkpoint of a run."""
        path = Path(folder)
        inner = path / "checkpoint"
        state = Vault(inner if inner.is_dir() else path).read()
        if state is None:
            raise CheckpointError(f"{path} holds no learned state: no {path / 'manifest.json'}")
        meta = state.meta
        try:
            known = meta["backbone"]
            base = backbones.rebuild(known["name"], known["timm_name"], known["input_size"])
            base.sha256 = known["sha256"]
            learner = cls(
                meta["method"],
                backbone=base,
                recipe=meta["recipe"],
                params=meta["params"],
                stream=meta["stream"],
                transform=TransformSpec.from_dict(meta["transform"]),
                seed=meta["seed"],
                settings=settings,
                progress=progress,
            )
        except KeyError as error:
            raise CheckpointError(f"the state in {path} lacks {error}: it was not written by ductwork") from None
        learner.restore(state)
        return learner

    def state(self) -> State:
        """Everything that was learned, whole without the data."""
        backbone = self.method.backbone
        meta = {
            "ductwork": __version__,
            "method": self.method.name,
            "recipe": self.recipe,
            "params": self.config.model_dump(mode="json"),
            "stream": self.stream,
            "seed": self.seed,
            "backbone": {
                "name": backbone.name,
                "timm_name": backbone.timm_name,
                "sha256": backbone.sha256,
                "input_size": backbone.input_size,
            },
            "transform": self.transform.as_dict(),
            "precision": self.session.precision,
            "rows": self.method.rows.to_json(),
            "extra": self.method.extra(),
            "stages": [asdict(report) for report in self.reports],
            "unfinished": None,
        }
        return State(meta, self.method.parts())

    def restore(self, state: State) -> None:
        """Take over a state that ``state`` gave, in the same configuration."""
        meta, mine = state.meta, self.state().meta
        for key in ("method", "params", "seed"):
            if meta[key] != mine[key]:
                raise CheckpointError(f"the checkpoint was made with {key} = {meta[key]}, not {mine[key]}")
        if meta["backbone"]["sha256"] != mine["backbone"]["sha256"]:
            raise CheckpointError(f"the checkpoint was made with another backbone: {meta['backbone']['name']}")
        parts = dict(state.parts)
        training = parts.pop("training", None)
        self.method.rows = Rows.from_json(meta["rows"])
        self.method.load_extra(meta["extra"])
        self.method.load_parts(parts)
        self.method.to(self.session.device)
        self.reports = [StageReport(**report) for report in meta["stages"]]
        left = meta["unfinished"]
        if left is not None:
            snapshot = Snapshot(left["epoch"], training) if training is not None else None
            self._unfinished = Unfinished(StageReport(**left["report"]), left["phases_done"], left["call"], snapshot)

    def _checkpoint(self, moment: str, left: Unfinished | None) -> None:
        levels = ("stage", "phase", "epoch")
        if self._vault is None or levels.index(moment) > levels.index(self.session.settings.checkpoint):
            return
        if moment == "epoch":
            assert left is not None and left.snapshot is not None
            # A phase starts from the state before it, so that is what stays beside the training under way.
            state = State(self._settled_meta, {"training": dict(left.snapshot.tensors)})
            keep = [name for name in self._vault.names() if name != "training"]
        else:
            state, keep = self.state(), list(self.method.constant_parts)
            self._settled_meta = state.meta
        epoch = left.snapshot.epoch if left and left.snapshot else 0
        unfinished = left and {
            "report": asdict(left.report),
            "phases_done": left.phases_done,
            "call": left.call,
            "epoch": epoch,
        }
        if self.session.ranks.leads:
            written = self._vault.write(State({**state.meta, "unfinished": unfinished}, state.parts), keep=keep)
            report = left.report if left else self.reports[-1] if self.reports else None
            if report is not None:
                report.work["bytes_written"] = report.work.get("bytes_written", 0) + written
        self.session.ranks.wait()

    def _after_epoch(
        self,
        report: StageReport,
        at: int,
        call: int,
        log: EpochLog,
        snapshot: Callable[[], Snapshot],
        on_epoch: OnEpoch | None,
    ) -> None:
        if on_epoch is not None and self.session.ranks.leads:
            on_epoch(len(self.reports) + 1, report.domain, self._phase, log)
        self._settle_time(report)
        if self._vault is not None and self.session.settings.checkpoint == "epoch":
            self._checkpoint("epoch", Unfinished(report, at, call, snapshot()))

    # using

    def evaluate(self, images: Images) -> Evaluation:
        """Accuracy on an image set, a domain, several domains, or a mapping such as ``stream.seen(domain)``."""
        if not self.method.rows.blocks:
            raise ConfigError("this learner has learned nothing yet: call learn(domain) first")
        return evaluate(self.session, self.method, _tests(images), test_transform(self.transform))

    @overload
    def predict(self, images: str | Path) -> Prediction: ...  # type: ignore[overload-overlap]  # a str is a sequence
    @overload
    def predict(self, images: Sequence[str | Path] | ImageSet) -> list[Prediction]: ...
    def predict(self, images: str | Path | Sequence[str | Path] | ImageSet) -> Prediction | list[Prediction]:
        """Class, probability and nearest known domain of one image file, or of several."""
        if not self.method.rows.blocks:
            raise ConfigError("this learner has learned nothing yet: call learn(domain) first")
        if isinstance(images, (str, Path)):
            return self.predict([images])[0]
        if not isinstance(images, ImageSet):
            files = tuple(str(Path(path)) for path in images)
            images = ImageSet(FileSource(".", files), np.zeros(len(files), np.int64), ("",))
        size = self.session.settings.eval_batch_size
        loader = Loader(images, test_transform(self.transform), batch_size=size, workers=0)
        return [found for batch in loader.epoch() for found in predict(self.session, self.method, batch.inputs)]


def _tests(images: Images) -> Mapping[str, ImageSet]:
    if isinstance(images, ImageSet):
        return {"test": images}
    if isinstance(images, Domain):
        return {images.name: images.test}
    if isinstance(images, Mapping):
        return images
    return {domain.name: domain.test for domain in images}
