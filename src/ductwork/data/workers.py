"""Processes that work for this one: started so that Ctrl-C, errors and their end make no noise."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from ductwork.errors import DuctworkError

AHEAD = 2  #: pieces of work that each process is given before the first is called for


@dataclass(frozen=True)
class Failure:
    """An error of the user's, carried out of a worker as a value: torch would bury its line in a traceback."""

    error: DuctworkError


class KilledError(DuctworkError):
    """A worker is gone, and with it all that the processes were doing."""


def pool(
    work: Dataset[Any], pieces: Iterable[Any], workers: int, *, keep: bool = False, start_method: str | None = None
) -> DataLoader[Any]:
    """Processes that carry out ``work[piece]``; iterated, it gives the results in the order of ``pieces``.

    With ``keep`` they live on for the next iteration, until :func:`stop`.
    """
    return DataLoader(
        work,
        batch_size=None,  # a piece is a whole batch
        sampler=pieces,
        num_workers=workers,
        collate_fn=_as_it_is,
        persistent_workers=keep,
        prefetch_factor=AHEAD,
        multiprocessing_context=start_method,
        worker_init_fn=_begin,
        generator=torch.Generator(),  # or it would draw from the global one, which dropout uses
    )


def results(pool: DataLoader[Any], workers: int) -> Iterator[Any]:
    """What the processes give back. One that is killed is explained in a line."""
    try:
        with _interrupts_held():
            iterator = iter(pool)  # starts the processes, or tells them that there is more to do
        yield from iterator
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker"):
            raise
        reason = "a process that reads images was killed, probably because memory ran out"
        raise KilledError(f"{reason}: use fewer workers than {workers} or a smaller batch") from error


def stop(pool: DataLoader[Any], owner: int) -> None:
    """End the processes, if they are of this process and not of one that it was forked from."""
    iterator = getattr(pool, "_iterator", None)  # torch offers no public way to end persistent workers
    if iterator is not None and os.getpid() == owner:
        iterator._shutdown_workers()


def _as_it_is(batch: Any) -> Any:
    return batch


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C waits meanwhile. Processes that start now never hear of it: only this one shall answer it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(worker: int) -> None:
    """Where signals cannot be held back, ignore Ctrl-C at least from now on.

    What a forked worker inherits is frozen: collecting it would copy its memory, and might stop pools of the parent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.excepthook = _unless_nobody_listens
    gc.freeze()


def _unless_nobody_listens(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A batch that is handed over while the reading process is being interrupted is no news to anybody."""
    if not issubclass(kind, ConnectionError | EOFError):
        sys.__excepthook__(kind, error, trace)
