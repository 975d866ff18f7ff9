"""Do a grid: keep an executor busy until every run has ended, whatever happens to single ones."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from ductwork.errors import DuctworkError
from ductwork.experiments.executors import Ended, Executor, Task
from ductwork.experiments.folder import LOCK_FILE, conclude
from ductwork.experiments.plan import Plan, Planned
from ductwork.experiments.results import RESULT_FILE, RunResult, read_result
from ductwork.experiments.watch import Watcher, title

RETRIES = 3
_LOOK_SECONDS = 0.5


def bench(plan: Plan, executor: Executor, watcher: Watcher, *, retries: int = RETRIES) -> list[RunResult]:
    """Do what is left of a plan and return the results of all its runs.

    A run whose process dies goes on from its checkpoint, ``retries`` times at most. One that fails is written down as
    failed and the others go on. When this is interrupted, by Ctrl-C or worse, the same call goes on later.
    """
    with _locked(plan.out):
        for run in plan.of("not-applicable"):
            _put_down(run)
        watcher.begin(len(plan.runs) - len(plan.tasks), len(plan.runs))
        try:
            _Queue(executor, watcher, retries, deque(plan.tasks)).work_off()
        finally:
            executor.stop()
    return [read_result(run.folder) for run in plan.runs]


@dataclass
class _Queue:
    executor: Executor
    watcher: Watcher
    retries: int
    waiting: deque[Task]
    running: dict[int, Task] = field(default_factory=dict)
    begun: dict[int, float] = field(default_factory=dict)
    crashes: Counter[int] = field(default_factory=Counter)

    def work_off(self) -> None:
        while self.waiting or self.running:
            while self.waiting and len(self.running) < self.executor.jobs:
                task = self.waiting.popleft()
                self.running[task.number] = task
                self.begun.setdefault(task.number, time.monotonic())
                self.executor.start(task)
            self.watcher.look(self.running)
            for ended in self.executor.wait(_LOOK_SECONDS):
                self._take(ended)

    def _take(self, ended: Ended) -> None:
        task = self.running.pop(ended.number)
        result = read_result(task.folder) if (task.folder / RESULT_FILE).exists() else task.blank
        if result.status == "running":
            crash = ended.crash or "its process ended in the middle"
            self.crashes[ended.number] += 1
            if self.crashes[ended.number] <= self.retries:
                self.watcher.say(f"{title(task.config)}: {crash}; it goes on from its checkpoint")
                self.waiting.appendleft(task)
                return
            times = self.crashes[ended.number]
            result = conclude(task.folder, task.blank, "failed", f"{crash} (tried {times} times)")
        self.watcher.ended(task, result, time.monotonic() - self.begun[ended.number])


def _put_down(run: Planned) -> None:
    assert run.blank is not None and run.reason is not None
    conclude(run.folder, run.blank, "not-applicable", run.reason)


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """One grid at a time in a folder: two would give the same run to two workers."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = FileLock(out / LOCK_FILE)
        lock.acquire(timeout=0)
    except Timeout:
        raise DuctworkError(f"another grid is at work in {out}; wait for it or choose another --out") from None
    except OSError as error:
        raise DuctworkError(f"cannot write to {out}: {error.strerror or error}") from None
    try:
        yield
    finally:
        lock.release()
