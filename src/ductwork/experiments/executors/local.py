"""Runs in processes of this machine, one per device, the processor's threads divided among them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType

from ductwork.experiments.executors import MEMORY_OF_A_RUN, Ended, Task, print_to_log

_MOST_ON_PROCESSORS = 8
_POLITE_SECONDS = 10.0
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class _Slot:
    """A place for one run: a device, or nothing but processor threads."""

    number: int
    device: str | None


@dataclass
class _Worker:
    task: Task
    process: BaseProcess
    slot: _Slot
    lifeline: Connection


class LocalExecutor:
    """Each run has a fresh process, forked where that is possible from one that has imported everything already."""

    def __init__(self, jobs: int | None = None, *, on_processors: bool = False, runs: int | None = None) -> None:
        """``jobs`` runs at a time, by default what the machine carries and no more than there are ``runs``."""
        devices = [] if on_processors else _devices()
        self.jobs = jobs or min(len(devices) or _jobs_on_processors(), runs or sys.maxsize)
        self.threads = int(os.environ.get("OMP_NUM_THREADS", "0")) or max(1, _cores() // self.jobs)
        where = f"{len(devices)} GPU{'s' * (len(devices) != 1)}" if devices else f"{self.threads} threads each"
        self.about = f"{self.jobs} process{'es' * (self.jobs != 1)}, {where}"
        self._free = [_Slot(i, devices[i % len(devices)] if devices else None) for i in range(self.jobs)][::-1]
        self._workers: list[_Worker] = []
        methods = multiprocessing.get_all_start_methods()
        self._context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
        self._context.set_forkserver_preload([__name__, f"{__package__}.worker"])

    def start(self, task: Task) -> None:
        slot = self._free.pop()
        # The worker holds one end and ends when the other is closed, which the system does for whoever is killed.
        theirs, ours = self._context.Pipe(duplex=False)
        arguments = (task.model_dump_json(), self.threads, slot.device, theirs)
        process = self._context.Process(target=_main, args=arguments, name=f"run {task.number}")  # type: ignore[attr-defined]
        with _limited_threads(self.threads):
            process.start()
        theirs.close()
        self._workers.append(_Worker(task, process, slot, ours))

    def wait(self, seconds: float) -> list[Ended]:
        gone = wait([worker.process.sentinel for worker in self._workers], timeout=seconds)
        return [self._take(worker) for worker in list(self._workers) if worker.process.sentinel in gone]

    def _take(self, worker: _Worker) -> Ended:
        worker.process.join()
        code = worker.process.exitcode
        self._workers.remove(worker)
        self._free.append(worker.slot)
        worker.lifeline.close()
        worker.process.close()
        return Ended(worker.task.number, None if code == 0 else _how(code))

    def stop(self) -> None:
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join(_POLITE_SECONDS)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.lifeline.close()
        self._workers = []


def _main(text: str, threads: int, device: str | None, lifeline: Connection) -> None:
    """The whole life of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever started us, and that one tells us
    signal.signal(signal.SIGTERM, _interrupt)
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    task = Task.model_validate_json(text)
    print_to_log(task.folder)
    from ductwork.experiments.executors.worker import work

    try:
        work(task, threads)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGTERM)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _end_with(lifeline: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv_bytes()
    os._exit(1)  # a run can be ended at any moment; its folder is locked, and somebody may be waiting for it


@contextlib.contextmanager
def _limited_threads(count: int) -> Iterator[None]:
    """Numerical libraries read these when they are loaded, and never again."""
    added = {name: str(count) for name in _THREADS if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _how(code: int | None) -> str:
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended with exit code {code}"


def _devices() -> list[str]:
    """The GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them."""
    import torch

    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named or [str(number) for number in range(torch.cuda.device_count())] if torch.cuda.device_count() else []


def _jobs_on_processors() -> int:
    """As many runs as have a core and memory each; beyond some, few runs with many threads are kinder to caches."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        memory = 2 * MEMORY_OF_A_RUN
    return max(1, min(_cores(), memory // MEMORY_OF_A_RUN, _MOST_ON_PROCESSORS))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
