"""Weights & Biases: project ``WANDB_PROJECT`` or ``ductwork``; ``WANDB_MODE=offline`` keeps it in the run's folder."""

from __future__ import annotations

import os
import uuid

import wandb

from ductwork.errors import ConfigError
from ductwork.experiments.trackers import Status, Story, Tracker, Values

_EXIT_CODES: dict[Status, int] = {"done": 0, "failed": 1, "interrupted": 130}


def begin(story: Story) -> Tracker:
    if wandb.setup().settings.mode == "online" and not wandb.login(prompt=False):  # it would ask, and wait
        raise ConfigError("no account is known: run `wandb login`, or set WANDB_MODE=offline")
    return _WandB(story)


class _WandB:
    def __init__(self, story: Story) -> None:
        self._story = story
        story.memory.setdefault("id", uuid.uuid4().hex)
        story.remember()
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "ductwork"),
            id=story.memory["id"],
            name=story.title,
            dir=story.folder,
            config=dict(story.settings),
            resume="allow",
            settings=wandb.Settings(silent=True, console="off"),
        )
        # without a network the store cannot be asked
        self.last = int(story.memory.get("last", 0))

    def log(self, step: int, values: Values) -> None:
        self._run.log(dict(values), step=step)
        self._story.memory["last"] = step
        self._story.remember()

    def end(self, status: Status) -> None:
        self._run.finish(exit_code=_EXIT_CODES[status])
