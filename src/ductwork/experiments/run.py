"""One run: a configuration becomes a folder (``config.yaml``, ``result.json``, ``checkpoint/`` ...)."""

from __future__ import annotations

import platform
import time
import traceback
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import torch
import yaml

from ductwork import __version__
from ductwork import functional as F
from ductwork.backbones import registry as backbones
from ductwork.backbones.base import Backbone
from ductwork.data.domain import ImageSet
from ductwork.data.folders import verify_readable
from ductwork.data.incremental import by_classes
from ductwork.data.streams import open_stream
from ductwork.engine.checkpoint import write_atomically
from ductwork.engine.launch import launch
from ductwork.engine.learner import Learner, StageReport
from ductwork.engine.loop import EpochLog
from ductwork.engine.progress import Progress
from ductwork.engine.ranks import join, started_as_rank
from ductwork.engine.session import Session, Work
from ductwork.errors import CheckpointError, ConfigError, DataError, DuctworkError
from ductwork.experiments.config import RunConfig
from ductwork.experiments.embedding import embed
from ductwork.experiments.folder import CHECKPOINT, CONFIG_FILE, conclude, earlier, locked, write
from ductwork.experiments.results import (
    EMBEDDING_FILE,
    METRICS_FILE,
    BackboneRecord,
    DataRecord,
    EmbeddingRecord,
    EpochRecord,
    Price,
    RunResult,
    StageRecord,
    is_done,
    read_metrics,
    read_result,
)
from ductwork.experiments.results import Work as WorkRecord
from ductwork.experiments.trackers import Trackers
from ductwork.experiments.watch import title

_PACKAGES = ("torch", "torchvision", "timm", "lightning-fabric", "numpy", "pot", "scikit-learn", "safetensors")


def run(config: RunConfig, out: Path | None = None, *, progress: Progress | None = None) -> RunResult:
    """Run, or go on with what ``out`` holds. A run that is done is read, not repeated.

    With ``engine.devices`` above 1 so many processes are started here; under ``torchrun`` this is one of them.
    """
    out = out or Path("runs") / config.name()
    if started_as_rank():
        return _as_one_of_all(config, out, progress)
    with locked(out):
        return _read_or_run(config, out, progress)


def attempt(
    config: RunConfig, out: Path, blank: RunResult, *, progress: Progress | None = None, patience: float = 0.0
) -> RunResult:
    """``run`` where nobody stands by: what goes wrong is written down as the run's result.

    ``blank`` is the result of a run that has not begun. A process that is still at work in the folder is waited for
    ``patience`` seconds.
    """
    with locked(out, patience):
        try:
            return _read_or_run(config, out, progress)
        except Exception as error:
            if is_done(out):  # it belongs to another run
                raise
            if not isinstance(error, DuctworkError) and progress is not None:
                progress.say(traceback.format_exc())
            return conclude(out, blank, "failed", describe(error))


def describe(error: Exception) -> str:
    """An error in one line: ours are made for that, others need their kind."""
    text = " ".join(str(error).split())
    return text if isinstance(error, DuctworkError) else f"{type(error).__name__}: {text}".removesuffix(": ")


def _read_or_run(config: RunConfig, out: Path, progress: Progress | None) -> RunResult:
    """With the folder locked. What can be said at once is said before processes are started."""
    resumed = earlier(out, config)
    if resumed is not None and is_done(out):
        return read_result(out)
    if config.engine.nodes > 1:
        raise ConfigError("a run on several nodes is started by torchrun on each of them; docs/cluster.md shows how")
    if config.engine.devices == 1:
        return _Run(config, out, progress, resumed).go()
    launch(config.engine.devices, _as_launched, config, out, resumed, progress=progress)
    return read_result(out)


def _as_launched(config: RunConfig, out: Path, resumed: Mapping[str, Any] | None, progress: Progress) -> None:
    """The run as each process sees it that was started here; the one that started them holds the lock."""
    with join(config.engine).one_voice():
        _Run(config, out, progress, resumed).go()


def _as_one_of_all(config: RunConfig, out: Path, progress: Progress | None) -> RunResult:
    """The run as each process of torchrun sees it; the first one holds the lock, and reads and writes the folder."""
    ranks = join(config.engine)
    with ranks.one_voice(), ExitStack() as held:
        resumed, done = None, False
        with ranks.together():
            if ranks.leads:
                held.enter_context(locked(out))
                resumed = earlier(out, config)
                done = resumed is not None and is_done(out)
        resumed, done = ranks.tell((resumed, done))
        return read_result(out) if done else _Run(config, out, progress, resumed).go()


class _Run:
    """Everything is opened and checked in the constructor, before the first batch."""

    def __init__(
        self, config: RunConfig, out: Path, progress: Progress | None, resumed: Mapping[str, Any] | None
    ) -> None:
        self.config, self.out = config, out
        self.embedding: EmbeddingRecord | None = None
        settings = config.engine
        if resumed is not None:  # the precision that a probe chose then, not what it would choose now
            settings = settings.model_copy(update={"precision": resumed["precision"]})
        self.ranks = join(settings)
        with self.ranks.together():
            backbone = self._open()
        session = Session(settings, progress, backbone)
        with self.ranks.together():
            self.trackers = Trackers(config.track if self.ranks.leads else (), out, session.progress.say)
            self.learner = self._learner(backbone, session)
        self._check_same(resumed)
        if self.ranks.leads and resumed is None:
            text = yaml.safe_dump(self._settings(), sort_keys=False, allow_unicode=True)
            write_atomically(out / CONFIG_FILE, text.encode())
        self.learner.keep_in(out / CHECKPOINT)
        self.learner.library.update({domain.name: domain.train for domain in self.stream})

    def _open(self) -> Backbone:
        config = self.config
        self.stream = open_stream(
            config.stream, root=config.root, order=config.order, split=config.split, seed=config.split_seed
        )
        verify_readable(self.stream)
        if config.increment is not None:
            self.stream = by_classes(self.stream, config.increment)
        return backbones.create(config.backbone, weights=config.weights, input_size=config.image_size)

    def _learner(self, backbone: Backbone, session: Session) -> Learner:
        config = self.config
        return Learner(
            config.method,
            backbone=backbone,
            recipe=config.recipe,
            params=config.params,
            stream=self.stream.name,
            transform=self.stream.transform if config.transform == "auto" else config.transform,
            seed=config.seed,
            session=session,
        )

    def _check_same(self, resumed: Mapping[str, Any] | None) -> None:
        """What a run that goes on must find unchanged, and every process must find alike."""
        now = {"images": self.stream.fingerprint, "backbone": self.learner.method.backbone.sha256}
        first = self.ranks.tell(now)
        then = resumed and {"images": resumed["data"]["fingerprint"], "backbone": resumed["backbone"]["sha256"]}
        with self.ranks.together():
            for what in now:
                if now[what] != first[what]:
                    raise DataError(
                        f"the {what} here differ from those of the first process; all machines need the same"
                    )
                if then and now[what] != then[what]:
                    fix = "choose another --out"
                    raise CheckpointError(f"the {what} changed since the run in {self.out} was begun; {fix}")

    def go(self) -> RunResult:
        if self.ranks.leads:
            self._trim_metrics()
        self._write("running")
        logged, stages = read_metrics(self.out), [_stage_record(report) for report in self.learner.reports]
        with self.trackers.following(title(self.config), self._settings(), logged, stages):
            for number, domain in enumerate(self.stream, start=1):
                if number > len(self.learner.reports):
                    tests, ahead = self.stream.seen(domain), self._ahead(number)
                    left = len(self.stream) - number
                    self.learner.learn(domain, tests=tests, ahead=ahead, remaining=left, on_epoch=self._log_epoch)
                    self.trackers.stage(number, _stage_record(self.learner.reports[-1]))
                    if number < len(self.stream):
                        self._write("running")
            if self.config.engine.embedding:
                self._embed()
            result = self._write("done")
        self.trackers.done(result)
        return result

    def _embed(self) -> None:
        """Write down where test images lie in the learned space, and where they lay in the pre-trained one."""
        config, session = self.config, self.learner.session
        pretrained = backbones.create(config.backbone, weights=config.weights, input_size=config.image_size)
        session.work, start = Work(), time.perf_counter()
        engine = config.engine
        found = embed(self.learner, pretrained, self.stream, images=engine.embedding, classes=engine.embedding_classes)
        if self.ranks.leads:
            write_atomically(self.out / EMBEDDING_FILE, found.to_bytes())
        counts = session.sum(torch.tensor(list(session.work.to_json().values()))).tolist()
        self.embedding = EmbeddingRecord(
            images=len(found),
            classes=len(found.classes),
            seconds=time.perf_counter() - start,
            work=WorkRecord(**dict(zip(session.work.names, counts, strict=True))),
        )

    def _ahead(self, number: int) -> Mapping[str, ImageSet]:
        """The next domain's test set, where forward transfer was asked for and means something."""
        if not self.config.engine.evaluate_ahead or self.stream.tests is not None or number == len(self.stream):
            return {}
        return {self.stream[number].name: self.stream[number].test}

    def _result(self, status: Literal["running", "done"], peak: int) -> RunResult:
        learner, config, method = self.learner, self.config, self.learner.method
        stages = [_stage_record(report) for report in learner.reports]
        price = method.price()
        return RunResult(
            method=config.method,
            recipe=config.recipe,
            params=learner.config.model_dump(mode="json"),
            stream=self.stream.name,
            order=list(self.stream.order),
            seed=config.seed,
            backbone=BackboneRecord(
                name=method.backbone.name,
                sha256=method.backbone.sha256,
                parameters=sum(p.numel() for p in method.backbone.parameters()),
            ),
            data=DataRecord(fingerprint=self.stream.fingerprint, classes=len(self.stream.classes)),
            stages=stages,
            price=Price(
                parameters=price.parameters,
                trainable_parameters=price.trainable_parameters,
                state_bytes=sum(t.nbytes for part in method.parts().values() for t in part.values()),
                inference_passes=price.inference_passes,
            ),
            precision=learner.session.precision,
            device=learner.session.describe(),
            processes=self.ranks.world,
            versions=_versions(),
            seconds=sum(sum(stage.seconds.values()) for stage in stages),
            peak_memory_bytes=peak,
            embedding=self.embedding,
            status=status,
            **self._metrics(),
        )

    def _metrics(self) -> dict[str, float | None]:
        """Everything that follows from the accuracy matrix."""
        reports = [report for report in self.learner.reports if report.evaluation]
        if not reports:
            return {}
        rows = [{**(report.evaluation or {})["accuracy"], **report.records.get("ahead", {})} for report in reports]
        tests = self.stream.seen(self.stream[-1])
        sizes = {name: len(tests[name]) for row in rows for name in row}
        matrix = F.accuracy_matrix(rows, list(sizes))
        order = self.stream.order
        learned_at = None if self.stream.tests is not None else [order.index(name) for name in sizes]
        chance = [100.0 / len(self.stream.classes)] * len(sizes) if self.config.engine.evaluate_ahead else None
        found = F.summary(matrix, list(sizes.values()), baseline=chance, learned_at=learned_at)
        names = ("A_bar", "A_B", "forgetting", "forgetting_chaudhry", "bwt", "fwt")
        return {name: getattr(found, name) for name in names}

    def _write(self, status: Literal["running", "done"]) -> RunResult:
        result = self._result(status, self.ranks.largest(_peak_memory()))
        if self.ranks.leads:
            write(self.out, result)
        return result

    def _log_epoch(self, stage: int, domain: str, phase: str, log: EpochLog) -> None:
        record = EpochRecord(
            stage=stage, domain=domain, phase=phase, epoch=log.epoch, seconds=log.seconds, loss=log.loss, lr=log.lr
        )
        with open(self.out / METRICS_FILE, "a", encoding="utf-8") as file:
            file.write(record.model_dump_json(exclude_none=True) + "\n")
        self.trackers.epoch(record)

    def _trim_metrics(self) -> None:
        """Drop the lines of epochs that the checkpoint does not hold: they will be written again."""
        done = len(self.learner.reports)
        phases, phase, epoch = self.learner.unfinished or ((), "", 0)

        def kept(line: EpochRecord) -> bool:
            if line.stage == done + 1:
                return line.phase in phases or (line.phase == phase and line.epoch <= epoch)
            return line.stage <= done

        lines = [line.model_dump_json(exclude_none=True) + "\n" for line in read_metrics(self.out) if kept(line)]
        write_atomically(self.out / METRICS_FILE, "".join(lines).encode())

    def _settings(self) -> dict[str, Any]:
        """What was asked for, and what it resolved to."""
        learner = self.learner
        values = self.config.model_dump(mode="json")
        values["resolved"] = {
            "params": learner.config.model_dump(mode="json"),
            "order": list(self.stream.order),
            "transform": learner.transform.as_dict(),
            "precision": learner.session.precision,
            "precision_reason": learner.session.precision_reason,
            "backbone": {"timm_name": learner.method.backbone.timm_name, "sha256": learner.method.backbone.sha256},
            "data": {"fingerprint": self.stream.fingerprint},
            "versions": _versions(),
        }
        return values


def _stage_record(report: StageReport) -> StageRecord:
    """A stage as ``result.json`` has it: the engine's report with the evaluation spread out."""
    found = report.evaluation or {"accuracy": {}, "n_test": {}, "A_b": 0.0, "after": {}}
    return StageRecord.model_validate(
        {
            "domain": report.domain,
            "n_train": report.n_train,
            "classes": report.classes,
            "seconds": report.seconds,
            "work": report.work,
            **found,
            **report.records,
        }
    )


def _versions() -> dict[str, str]:
    found = {"ductwork": __version__, "python": platform.python_version(), "platform": platform.platform()}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _peak_memory() -> int:
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    try:
        import resource
    except ImportError:  # Windows
        return 0
    unit = 1 if platform.system() == "Darwin" else 1024
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit
