"""What a worker process does with its task. Imported ahead by the processes that workers are made from."""

from __future__ import annotations

import torch

from ductwork.experiments.executors import Task
from ductwork.experiments.run import attempt
from ductwork.experiments.watch import Notes

_LOCK_SECONDS = 60.0  # what a dying process may take to let go of its run folder, on a slow network file system


def work(task: Task, threads: int) -> None:
    """Do a run with so many processor threads. Whatever goes wrong with the run itself is in its folder afterwards."""
    torch.set_num_threads(threads)
    config, settings = task.config, task.config.engine
    if settings.workers == "auto":  # one of the threads computes
        settings = settings.model_copy(update={"workers": max(0, min(8, threads - 1))})
        config = config.model_copy(update={"engine": settings})
    task.folder.mkdir(parents=True, exist_ok=True)
    with Notes(task.folder) as progress:
        attempt(config, task.folder, task.blank, progress=progress, patience=_LOCK_SECONDS)
