"""How far the work is: a bar on a terminal, a line for each finished phase elsewhere, nothing in tests."""

from __future__ import annotations

import os
import sys
import time
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TextIO

if TYPE_CHECKING:
    from rich.progress import TaskID


class Progress(Protocol):
    """What the engine tells of its work. ``begin`` ends what was begun before."""

    def begin(self, work: str, images: int) -> None: ...

    def rename(self, work: str) -> None: ...

    def advance(self, images: int) -> None: ...

    def end(self, remark: str = "") -> None: ...

    def say(self, line: str) -> None: ...


class Silent(AbstractContextManager["Silent"]):
    """Tells nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def begin(self, work: str, images: int) -> None: ...

    def rename(self, work: str) -> None: ...

    def advance(self, images: int) -> None: ...

    def end(self, remark: str = "") -> None: ...

    def say(self, line: str) -> None: ...


class Lines(AbstractContextManager["Lines"]):
    """One plain line for each piece of work when it is finished, for logs and pipes."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._work, self._done, self._start = "", 0, 0.0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def begin(self, work: str, images: int) -> None:
        self.end()
        self._work, self._done, self._start = work, 0, time.perf_counter()

    def rename(self, work: str) -> None:
        self._work = work

    def advance(self, images: int) -> None:
        self._done += images

    def end(self, remark: str = "") -> None:
        if not self._work:
            return
        seconds = time.perf_counter() - self._start
        rate = f", {self._done / seconds:.0f} images/s" if self._done and seconds > 0 else ""
        self.say(f"{self._work}: {seconds:.1f} s{rate}{', ' + remark if remark else ''}")
        self._work = ""

    def say(self, line: str) -> None:
        print(line, file=self._out, flush=True)


class Bar(AbstractContextManager["Bar"]):
    """A bar with the phase, the rate and the time left."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            TextColumn("{task.description:<34}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TextColumn("{task.fields[rate]:>12}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task: TaskID | None = None
        self._start, self._done = 0.0, 0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def begin(self, work: str, images: int) -> None:
        self.end()
        self._task = self._bar.add_task(work, total=images or None, rate="")
        self._start, self._done = time.perf_counter(), 0

    def rename(self, work: str) -> None:
        if self._task is not None:
            self._bar.update(self._task, description=work)

    def advance(self, images: int) -> None:
        if self._task is not None:
            self._done += images
            rate = self._done / max(time.perf_counter() - self._start, 1e-9)
            self._bar.update(self._task, advance=images, rate=f"{rate:,.0f} img/s")

    def end(self, remark: str = "") -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None

    def say(self, line: str) -> None:
        self._bar.console.print(line, highlight=False, markup=False)


def for_terminal() -> Bar | Lines | Silent:
    """A bar where somebody is looking, lines where nobody is; of several processes only the first tells."""
    if os.environ.get("RANK", "0") != "0":
        return Silent()
    return Bar() if sys.stderr.isatty() else Lines()
