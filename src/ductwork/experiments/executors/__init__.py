"""Where the runs of a grid are done: in processes of this machine, or on a Ray cluster.

An executor starts tasks, says which have ended, and stops. Everything else is the same for all of them: what a run is
and what becomes of one that failed is in ``worker``, the queue and the retries are in ``bench``. What a run found is in
its folder, so nothing but the name of the folder travels.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict

from ductwork.experiments.config import RunConfig
from ductwork.experiments.results import RunResult


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

    jobs: int
    """How many tasks can be given to it at a time."""
    about: str
    """What it is, for the user."""

    def start(self, task: Task) -> None:
        """Begin a task now, or as soon as there is room."""
        ...

    def wait(self, seconds: float) -> list[Ended]:
        """The tasks that have ended, waiting for the first of them for so long at most."""
        ...

    def stop(self) -> None:
        """End everything that is under way, and every process with it. Safe to call twice."""
        ...
