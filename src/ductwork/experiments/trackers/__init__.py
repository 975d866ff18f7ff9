"""What a run tells to programs that watch many runs: TensorBoard, MLflow, Weights & Biases.

A run is a row of events: each epoch of training, each stage, and the end. The place of an event in this row is its
step. ``metrics.jsonl`` and ``result.json`` are the truth; a tracker's store is a copy, which says how far it got. So a
run that resumes tells what the store lacks, and nothing twice.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from ductwork.engine.checkpoint import write_atomically
from ductwork.experiments.config import TrackerName
from ductwork.experiments.results import EpochRecord, RunResult, StageRecord
from ductwork.validation import require

Status = Literal["done", "failed", "interrupted"]
Values = Mapping[str, float]

MEMORY_FILE = "tracking.json"
_FIGURES = ("A_bar", "A_B", "forgetting", "forgetting_chaudhry", "bwt", "fwt", "seconds", "peak_memory_bytes")


class Tracker(Protocol):
    """A run in a tracker's store."""

    last: int
    """Step of the last event that the store has; 0 for none."""

    def log(self, step: int, values: Values) -> None:
        """Keep the values of one event, all of them or none."""
        ...

    def end(self, status: Status) -> None:
        """Nothing more will come, or not before the run is taken up again."""
        ...


@dataclass(frozen=True)
class Story:
    """What a tracker may want to know of a run when it begins: made once, the same when the run resumes."""

    title: str
    folder: Path
    settings: Mapping[str, Any]
    memory: dict[str, Any]
    """What the tracker itself wants to know again when the run resumes."""
    remember: Callable[[], None]
    """Write the memory down."""


def check(names: Iterable[TrackerName]) -> None:
    """A ConfigError where a tracker is not installed."""
    for name in names:
        require(name, "track", f"track: {name}")


class Trackers:
    """All trackers of a run. One that fails is left out from then on: nothing that it does may harm the run."""

    def __init__(self, names: Sequence[TrackerName], folder: Path, warn: Callable[[str], None]) -> None:
        check(names)
        self._names, self._folder, self._warn = tuple(dict.fromkeys(names)), folder, warn
        self._open: dict[TrackerName, Tracker] = {}
        self._step = 0

    @contextmanager
    def following(
        self,
        title: str,
        settings: Mapping[str, Any],
        epochs: Iterable[EpochRecord] = (),
        stages: Sequence[StageRecord] = (),
    ) -> Iterator[None]:
        """Open the stores, tell them what they lack of the epochs and stages that are done, and what ends the run."""
        for name, story in self._stories(title, settings):
            with self._guarded(name):
                self._open[name] = _begun(name, story)
        for values in _events(epochs, stages):
            self._tell(values)
        try:
            yield
        except BaseException as error:
            self._end("failed" if isinstance(error, Exception) else "interrupted")
            raise

    def epoch(self, record: EpochRecord) -> None:
        self._tell(_of_epoch(record))

    def stage(self, number: int, record: StageRecord) -> None:
        self._tell(_of_stage(number, record))

    def done(self, result: RunResult) -> None:
        """Tell the final figures and close the stores."""
        self._tell({f"result/{name}": v for name in _FIGURES if (v := getattr(result, name)) is not None})
        self._end("done")

    def _stories(self, title: str, settings: Mapping[str, Any]) -> Iterator[tuple[TrackerName, Story]]:
        path = self._folder / MEMORY_FILE
        memory: dict[str, dict[str, Any]] = {}
        with suppress(OSError, ValueError):  # what cannot be read is begun anew
            memory = json.loads(path.read_text(encoding="utf-8"))
        for name in self._names:
            own = memory.setdefault(name, {})
            yield name, Story(title, self._folder, settings, own, lambda: write_atomically(path, _json(memory)))

    def _tell(self, values: Values) -> None:
        self._step += 1
        for name, tracker in list(self._open.items()):
            if self._step > tracker.last:
                with self._guarded(name):
                    tracker.log(self._step, values)
                    tracker.last = self._step

    def _end(self, status: Status) -> None:
        for name, tracker in list(self._open.items()):
            with self._guarded(name):
                tracker.end(status)
        self._open = {}

    @contextmanager
    def _guarded(self, name: TrackerName) -> Iterator[None]:
        """What goes wrong in a tracker is said once; the tracker is left out from then on."""
        try:
            yield
        except Exception as error:
            self._open.pop(name, None)
            reason = " ".join(str(error).split()) or type(error).__name__
            self._warn(f"warning: {name} failed, and the run goes on without it: {reason}")


def _json(memory: Mapping[str, Any]) -> bytes:
    return json.dumps(memory, indent=1).encode()


def _begun(name: TrackerName, story: Story) -> Tracker:
    """The tracker's module is imported when it is wanted: each loads a large library."""
    tracker: Tracker = importlib.import_module(f"{__name__}.{name}").begin(story)
    return tracker


def _events(epochs: Iterable[EpochRecord], stages: Sequence[StageRecord]) -> Iterator[Values]:
    """The events of a run so far, in the order in which they came about."""
    lines = list(epochs)
    for number, stage in enumerate(stages, start=1):
        yield from (_of_epoch(line) for line in lines if line.stage == number)
        yield _of_stage(number, stage)
    yield from (_of_epoch(line) for line in lines if line.stage > len(stages))


def _of_epoch(record: EpochRecord) -> Values:
    rates = {f"lr/{name}": rate for name, rate in record.lr.items()}
    loss = {} if record.loss is None else {"loss": record.loss}
    place = {"stage": float(record.stage), "epoch": float(record.epoch)}
    return {
        f"{record.phase}/{name}": value for name, value in {**loss, **rates, "seconds": record.seconds}.items()
    } | place


def _of_stage(number: int, record: StageRecord) -> Values:
    found = {"test/A_b": record.A_b, "stage": float(number)}
    found |= {f"test/accuracy/{domain}": value for domain, value in record.accuracy.items()}
    found |= {f"test/after/{phase}": value for phase, value in record.after.items()}
    found |= {f"seconds/{phase}": value for phase, value in record.seconds.items()}
    return found if record.similarity is None else found | {"similarity": record.similarity}
