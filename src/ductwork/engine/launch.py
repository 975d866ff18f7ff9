"""Several processes on this machine that compute one thing together, started and watched by this one."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch._C._distributed_c10d import TCPStore

from ductwork.engine.progress import Progress, Silent
from ductwork.errors import DuctworkError

_GRACE = 3.0  # seconds in which processes that lost one of them may end by themselves


def launch(count: int, target: Callable[..., object], *args: object, progress: Progress | None = None) -> None:
    """Call ``target(*args, progress)`` in ``count`` processes that find each other as under torchrun.

    What the first tells of its progress arrives at ``progress``. If one fails, all end, and its error is raised here.
    """
    context = multiprocessing.get_context("spawn")
    # The store lives here, so that it outlives every rank, and the system picks a port that is free.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes: list[BaseProcess] = []
    pipes: list[Connection] = []
    try:
        for rank in range(count):
            here, there = context.Pipe(duplex=False)
            process: BaseProcess = context.Process(target=_as_rank, args=(rank, count, store.port, there, target, args))
            process.start()
            there.close()
            processes.append(process)
            pipes.append(here)
        _watch(processes, pipes, progress or Silent())
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(_GRACE)
            process.kill()


def _watch(processes: Sequence[BaseProcess], pipes: Sequence[Connection], progress: Progress) -> None:
    """Pass on what ranks say until all have ended well; raise the error of the one that did not."""
    errors: list[str] = []
    running, speaking = list(processes), list(pipes)
    deadline = float("inf")
    while running and time.monotonic() < deadline:
        ready = wait([*speaking, *(p.sentinel for p in running)], timeout=min(1.0, deadline - time.monotonic()))
        for pipe in [p for p in speaking if p in ready]:
            try:
                kind, *what = pipe.recv()
            except (EOFError, OSError):
                speaking.remove(pipe)
                continue
            if kind == "error":
                errors.append(what[0])
            else:
                getattr(progress, kind)(*what)
        running = [p for p in running if p.is_alive() or p.sentinel not in ready]
        if any(p.exitcode for p in processes):
            deadline = min(deadline, time.monotonic() + _GRACE)
    failed = [(rank, p.exitcode) for rank, p in enumerate(processes, start=1) if p.exitcode]
    if failed:
        raise DuctworkError(_reason(failed, errors, len(processes)))


def _reason(failed: Sequence[tuple[int, int]], errors: Sequence[str], count: int) -> str:
    """A process that was killed said nothing, and what the others say is a consequence."""
    for rank, code in failed:
        if code < 0:
            return (
                f"process {rank} of {count} was ended by {signal.Signals(-code).name}, by somebody or for want of "
                "memory; nothing is lost, run the same command again to go on"
            )
    if errors:
        return errors[0]
    rank, code = failed[0]
    return f"process {rank} of {count} ended with exit code {code}; what it wrote above says why"


def _as_rank(
    rank: int, count: int, port: int, pipe: Connection, target: Callable[..., object], args: Sequence[object]
) -> None:
    """What a started process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one answers Ctrl-C for all
    threading.Thread(target=_end_with_parent, daemon=True).start()
    names = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "GROUP_RANK": 0,
        "WORLD_SIZE": count,
        "LOCAL_WORLD_SIZE": count,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": True,
    }
    os.environ.update({name: str(value) for name, value in names.items()})
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, torch.get_num_threads() // count))
    try:
        target(*args, _Relay(pipe))
    except DuctworkError as error:
        if os.environ.get("DUCTWORK_DEBUG"):
            traceback.print_exc()
        pipe.send(("error", str(error)))
        raise SystemExit(2) from None


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)  # the main thread may be waiting for another rank, and no exception reaches it there


class _Relay:
    """Progress in another process."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self._pipe.send((name, *args))
