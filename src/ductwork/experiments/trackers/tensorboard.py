"""TensorBoard: event files in the folder ``tensorboard`` of a run. ``tensorboard --logdir runs`` shows all runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.proto.summary_pb2 import Summary
from torch.utils.tensorboard import FileWriter, summary

from ductwork.experiments.trackers import Status, Story, Tracker, Values

FOLDER = "tensorboard"


def begin(story: Story) -> Tracker:
    return _TensorBoard(story)


class _TensorBoard:
    def __init__(self, story: Story) -> None:
        folder = story.folder / FOLDER
        self.last = _last_step(folder)
        self._writer: Any = FileWriter(str(folder))
        if not self.last:
            settings = yaml.safe_dump(dict(story.settings), sort_keys=False, allow_unicode=True)
            as_text: Any = summary.text
            self._writer.add_summary(as_text("config", f"    {settings.replace(chr(10), chr(10) + '    ')}"), 0)

    def log(self, step: int, values: Values) -> None:
        # one record, which a reader takes as a whole or, if it was cut off, not at all
        self._writer.add_summary(Summary(value=[Summary.Value(tag=k, simple_value=v) for k, v in values.items()]), step)
        self._writer.flush()

    def end(self, status: Status) -> None:
        self._writer.close()


def _last_step(folder: Path) -> int:
    files = sorted(folder.glob("*tfevents*"))
    return max((event.step for file in files for event in EventFileLoader(str(file)).Load()), default=0)
