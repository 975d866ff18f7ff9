"""MLflow: the store is ``MLFLOW_TRACKING_URI``, the experiment ``MLFLOW_EXPERIMENT_NAME`` or ``ductwork``."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

# A server that does not answer is given up soon: the run would wait for it. Read when MLflow is loaded.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunStatus
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import MLFLOW_RUN_NAME

from ductwork.experiments.trackers import Status, Story, Tracker, Values

_MARK = "event"  # a metric that each event has, so that the store can say how far it got
_ENDS: dict[Status, int] = {
    "done": RunStatus.FINISHED,
    "failed": RunStatus.FAILED,
    "interrupted": RunStatus.KILLED,
}
_PARAMS_AT_ONCE, _LONGEST_PARAM = 100, 500


def begin(story: Story) -> Tracker:
    for library in ("mlflow", "alembic"):
        logging.getLogger(library).setLevel(logging.WARNING)  # a new data base is no news to the user
    return _MLflow(story)


class _MLflow:
    def __init__(self, story: Story) -> None:
        self._client = MlflowClient()
        known = story.memory.get("run_id")
        if known is not None and self._exists(known):
            self._id: str = known
            self._client.update_run(known, RunStatus.to_string(RunStatus.RUNNING))
        else:
            tags = {MLFLOW_RUN_NAME: story.title, "folder": str(story.folder.absolute())}
            self._id = self._client.create_run(self._experiment(), tags=tags).info.run_id
            story.memory["run_id"] = self._id
            story.remember()
            params = [Param(_named(k), str(v)[:_LONGEST_PARAM]) for k, v in _flat(story.settings)]
            for start in range(0, len(params), _PARAMS_AT_ONCE):
                self._client.log_batch(self._id, params=params[start : start + _PARAMS_AT_ONCE])
        self.last = max((m.step for m in self._client.get_metric_history(self._id, _MARK)), default=0)

    def log(self, step: int, values: Values) -> None:
        now = int(time.time() * 1000)
        metrics = [Metric(_named(name), value, now, step) for name, value in values.items()]
        self._client.log_batch(self._id, metrics=[*metrics, Metric(_MARK, step, now, step)])

    def end(self, status: Status) -> None:
        self._client.set_terminated(self._id, RunStatus.to_string(_ENDS[status]))

    def _exists(self, run: str) -> bool:
        try:
            return bool(self._client.get_run(run).info.lifecycle_stage == "active")
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return False

    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "ductwork")
        try:
            return str(self._client.create_experiment(name))
        except MlflowException:  # it exists, or another run of a grid was faster
            found = self._client.get_experiment_by_name(name)
            if found is None:
                raise
            return str(found.experiment_id)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _named(name: str) -> str:
    """A name that MLflow takes: domains may be called anything."""
    return re.sub(r"[^\w\-. :/]", "_", name)
