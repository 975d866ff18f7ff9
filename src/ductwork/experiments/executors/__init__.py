"""Where the runs of a grid are done: in processes of this machine, or on a Ray cluster.

An executor starts tasks, says which have ended, and stops. Everything else is the same for all of them: what a run is
and what becomes of one that failed is in ``worker``, the queue and the retries are in ``bench``. What a run found is in
its folder, so nothing but the name of the folder travels.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict

from ductwork.experiments.config import RunConfig
from ductwork.experiments.folder import LOG_FILE
from ductwork.experiments.results import RunResult

MEMORY_OF_A_RUN = 4 << 30  # bytes: what training a ViT-B/16 takes, with a reserve for what is read beside it


class Task(BaseModel):
    """A run to be done: also as JSON, for another process or machine."""

    model_config = ConfigDict(frozen=True)

    number: int
    """Its place in the grid, from 1."""
    config: RunConfig
    folder: Path
    blank: RunResult
    """What its result says before it has begun."""


class Ended(NamedTuple):
    """A task whose process is gone. ``crash`` says how, unless the process came to its end; the folder has the rest."""

    number: int
    crash: str | None = None


class Executor(Protocol):
    """A place for processes, each of which does one run."""

    about: str
    """What it is, for the user."""

    @property
    def jobs(self) -> int:
        """How many tasks can be given to it at a time."""
        ...

    def start(self, task: Task) -> None:
        """Begin a task now, or as soon as there is room."""
        ...

    def wait(self, seconds: float) -> list[Ended]:
        """The tasks that have ended, waiting for the first of them for so long at most."""
        ...

    def stop(self) -> None:
        """End everything that is under way, and every process with it. Safe to call twice."""
        ...


def print_to_log(folder: Path) -> None:
    """What libraries print goes to the log of the run: the terminal shows the grid."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / LOG_FILE, "ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
