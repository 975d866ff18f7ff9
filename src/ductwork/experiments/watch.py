"""How far a grid is: each worker notes what it is doing in its run's folder, and whoever looks on reads the notes."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TextIO

from ductwork.engine.progress import Lines
from ductwork.experiments.config import RunConfig
from ductwork.experiments.executors import Task
from ductwork.experiments.folder import LOG_FILE, NOW_FILE
from ductwork.experiments.results import RunResult

_EVERY = 0.5  # seconds between two notes
_ROWS = 12  # finished runs that a terminal shows


class Notes(Lines):
    """The engine's progress, told to files: finished work to ``log.txt``, the work under way to a note."""

    def __init__(self, folder: Path) -> None:
        self._log = open(folder / LOG_FILE, "a", encoding="utf-8")  # noqa: SIM115  # closed when the run ends
        super().__init__(self._log)
        self._note, self._beside = folder / NOW_FILE, folder / f"{NOW_FILE}.new"
        self._whole, self._last = 0, 0.0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._note.unlink()
        self._log.close()

    def begin(self, work: str, images: int) -> None:
        super().begin(work, images)
        self._whole, self._last = images, 0.0
        self._tell()

    def rename(self, work: str) -> None:
        super().rename(work)
        self._tell()

    def advance(self, images: int) -> None:
        super().advance(images)
        self._tell()

    def _tell(self) -> None:
        """A note is for looking at: losing one costs nothing, so it is not flushed to the disk."""
        now = time.monotonic()
        if now - self._last < _EVERY:
            return
        self._last = now
        with contextlib.suppress(OSError):
            self._beside.write_text(json.dumps({"work": self._work, "done": self._done, "of": self._whole}))
            os.replace(self._beside, self._note)


def now(folder: Path) -> str:
    """What the run in a folder is doing; nothing where that is not known."""
    try:
        note = json.loads((folder / NOW_FILE).read_text(encoding="utf-8"))
        share = f" {100 * note['done'] / note['of']:.0f} %" if note["of"] else ""
        return f"{note['work']}{share}"
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def title(config: RunConfig) -> str:
    """A run in a few words: what tells it from its neighbours."""
    recipe = "" if config.recipe == "default" else f"/{config.recipe}"
    order = f" order {config.order}" if isinstance(config.order, int) else ""
    order = f" {','.join(config.order)}" if isinstance(config.order, list) else order
    params = "".join(f" {key}={value}" for key, value in config.params.items())
    return f"{config.method}{recipe} on {Path(config.stream).name}{order} seed {config.seed}{params}"


class Watcher(Protocol):
    """Who looks on while a grid is done."""

    def begin(self, done: int, total: int) -> None: ...

    def look(self, running: Mapping[int, Task]) -> None: ...

    def ended(self, task: Task, result: RunResult, seconds: float) -> None: ...

    def say(self, line: str) -> None: ...


class PlainLines(AbstractContextManager["PlainLines"]):
    """A line for each run that ends, for logs and pipes."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out, self._done, self._total = out or sys.stderr, 0, 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def begin(self, done: int, total: int) -> None:
        self._done, self._total = done, total

    def look(self, running: Mapping[int, Task]) -> None: ...

    def ended(self, task: Task, result: RunResult, seconds: float) -> None:
        self._done += 1
        self.say(f"[{self._done}/{self._total}] {title(task.config)}: {outcome(result)} ({seconds:.0f} s)")

    def say(self, line: str) -> None:
        print(line, file=self._out, flush=True)


class LiveTable(AbstractContextManager["LiveTable"]):
    """The runs under way and those that ended last, in a table that is drawn anew."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=Console(stderr=True), refresh_per_second=4, transient=True)
        self._done, self._total, self._start = 0, 0, time.monotonic()
        self._begun: dict[int, float] = {}
        self._last: list[Sequence[str]] = []

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def begin(self, done: int, total: int) -> None:
        self._done, self._total = done, total

    def look(self, running: Mapping[int, Task]) -> None:
        self._live.update(self._drawn(running))

    def ended(self, task: Task, result: RunResult, seconds: float) -> None:
        self._done += 1
        self._begun.pop(task.number, None)
        row = [str(task.number), title(task.config), outcome(result), clock(seconds)]
        self._last = [*self._last, row][-_ROWS:]
        if result.status != "done":
            self.say(f"{title(task.config)}: {outcome(result)}")

    def say(self, line: str) -> None:
        self._live.console.print(line, highlight=False, markup=False)

    def _drawn(self, running: Mapping[int, Task]) -> Any:
        from rich.table import Table
        from rich.text import Text

        elapsed = time.monotonic() - self._start
        table = Table(
            "run", "what", "", "time", box=None, header_style="bold", pad_edge=False, expand=True,
            caption=f"{self._done} of {self._total} runs, {clock(elapsed)}", caption_justify="left",
        )  # fmt: skip
        for row in self._last:
            table.add_row(*map(Text, row), style="dim")
        for number, task in sorted(running.items()):
            doing = now(task.folder)
            if doing:
                self._begun.setdefault(number, time.monotonic())
            begun = self._begun.get(number)
            time_taken = "" if begun is None else clock(time.monotonic() - begun)
            table.add_row(*map(Text, [str(number), title(task.config), doing or "waiting", time_taken]))
        return table


def for_terminal() -> LiveTable | PlainLines:
    """A table where somebody is looking, lines where nobody is."""
    return LiveTable() if sys.stderr.isatty() else PlainLines()


def outcome(result: RunResult) -> str:
    """How a run ended, in words or figures."""
    if result.status != "done":
        return f"{result.status.replace('-', ' ')}: {result.reason}"
    figures = {"A_bar": result.A_bar, "A_B": result.A_B, "forgetting": result.forgetting}
    return ", ".join(f"{name} {value:.2f}" for name, value in figures.items() if value is not None)


def clock(seconds: float) -> str:
    """A duration as hours, minutes and seconds."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
