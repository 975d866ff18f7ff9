"""Runs on a Ray cluster: one that exists, or one of this machine alone that is started here.

Ray finds a place for each run and says when its process is gone; a run is one task of Ray's in a process of its own.
Nothing is retried by Ray: what becomes of a run whose process or node died is decided where it is for all executors.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ductwork.errors import ConfigError, DataError, DuctworkError
from ductwork.experiments.executors import MEMORY_OF_A_RUN, Ended, Task, print_to_log
from ductwork.experiments.results import RESULT_FILE, read_result
from ductwork.experiments.run import describe
from ductwork.validation import require

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when Ray is loaded; nothing is told to anybody
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # runs without a GPU are no news to the user

_SEEN_SECONDS = 60.0  # what a network file system may take to show what another machine has written
_ANSWER_SECONDS = 10.0
_LOOK_AGAIN = 5.0  # seconds for which the size of the cluster is remembered


class RayExecutor:
    """Each run has a fresh process somewhere on the cluster, with the processors, GPUs and memory that it asks for.

    Args:
        address: of an existing cluster, ``host:port`` or ``auto``; default ``RAY_ADDRESS``, else one is started here.
        jobs: runs at a time; default as many as the cluster has room for, also when it grows.
        cpus: processors of a run, and so the threads that it computes with.
        gpus: GPUs of a run; default one, if the cluster has any.
        memory: bytes of a run.
        on_processors: whether runs want no GPU.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        jobs: int | None = None,
        cpus: int = 1,
        gpus: float | None = None,
        memory: int = MEMORY_OF_A_RUN,
        on_processors: bool = False,
    ) -> None:
        self._ray = require("ray", "cluster", "--engine ray")
        self._running: dict[Any, Task] = {}
        address = address or os.environ.get("RAY_ADDRESS") or "local"
        self._connect(address)
        try:
            nodes = self._nodes()
            gpus = float(not on_processors and any("GPU" in node for node in nodes)) if gpus is None else gpus
            self._wanted = {"CPU": float(cpus), "GPU": gpus, "memory": float(memory)}
            self._jobs, self._room, self._looked = jobs, room(nodes, self._wanted), time.monotonic()
            if not self._room and jobs is None:
                raise ConfigError(
                    f"no node of the Ray cluster has room for {_said(self._wanted)}; ask for less with --cpus, --gpus "
                    "and --memory, or give --jobs if the cluster grows by itself"
                )
        except BaseException:
            self._ray.shutdown()
            raise
        where = "started here" if address == "local" else address
        self.about = f"Ray ({where}), {len(nodes)} node{'s' * (len(nodes) != 1)}, {_said(self._wanted)} for each run"
        options = {"num_cpus": cpus, "num_gpus": gpus, "memory": memory, "max_retries": 0, "max_calls": 1}
        self._remote = self._ray.remote(**options)(_do)

    @property
    def jobs(self) -> int:
        if self._jobs is not None:
            return self._jobs
        if time.monotonic() - self._looked > _LOOK_AGAIN:
            self._room, self._looked = room(self._nodes(), self._wanted), time.monotonic()
        return max(1, self._room)  # what there is no room for now waits for it

    def start(self, task: Task) -> None:
        task.folder.mkdir(parents=True, exist_ok=True)
        self._running[self._remote.remote(task.model_dump_json(), int(self._wanted["CPU"]))] = task

    def wait(self, seconds: float) -> list[Ended]:
        waiting = list(self._running)
        first, _ = self._ray.wait(waiting, num_returns=1, timeout=seconds)
        gone, _ = self._ray.wait(waiting, num_returns=len(waiting), timeout=0) if first else ([], [])
        return [self._take(one) for one in gone]

    def _take(self, one: Any) -> Ended:
        task = self._running.pop(one)
        try:
            self._ray.get(one)
        except self._ray.exceptions.RayTaskError as error:  # it ran, and something that is not about the run failed
            return Ended(task.number, describe(error.cause or error))
        except self._ray.exceptions.RayError as error:
            return Ended(task.number, f"its process or its node died ({type(error).__name__})")
        _see(task.folder)
        return Ended(task.number)

    def stop(self) -> None:
        if self._ray.is_initialized():
            for one in self._running:
                with suppress(self._ray.exceptions.RayError):
                    self._ray.cancel(one, force=True)
            self._ray.shutdown()
        self._running = {}

    def _connect(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        try:
            if port.isdigit() and "/" not in host:  # Ray would go on trying for minutes
                socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_SECONDS).close()
            self._ray.init(
                address=address,
                logging_level=logging.ERROR,
                log_to_driver=False,  # what a run says is in its own log
                **({"include_dashboard": False} if address == "local" else {}),
            )
        except (OSError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            fix = "start one with `ray start --head`, or leave --address out to start one here"
            raise DuctworkError(f"no Ray cluster answers at {address}: {reason}; {fix}") from None

    def _nodes(self) -> list[Mapping[str, float]]:
        """What each living node has."""
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]


def _do(text: str, threads: int) -> None:
    """The whole life of a worker process of Ray's."""
    from ductwork.experiments.executors.worker import work

    task = Task.model_validate_json(text)
    if not task.folder.is_dir():
        raise DataError(
            f"{socket.gethostname()} has no folder {task.folder}: --out must be on a file system that all nodes share"
        )
    print_to_log(task.folder)
    work(task, threads)


def room(nodes: Sequence[Mapping[str, float]], wanted: Mapping[str, float]) -> int:
    """How many runs find what they want at the same time."""
    asked = {name: amount for name, amount in wanted.items() if amount}
    return sum(min(int(node.get(name, 0.0) / amount) for name, amount in asked.items()) for node in nodes)


def _said(wanted: Mapping[str, float]) -> str:
    parts = [f"{wanted[name]:g} {name}{'s' * (wanted[name] != 1)}" for name in ("CPU", "GPU") if wanted[name]]
    return ", ".join([*parts, f"{wanted['memory'] / 2**30:g} GB"])


def _see(folder: Path) -> None:
    """Wait until this machine sees how the run ended: the one where it ran has seen it already."""
    deadline = time.monotonic() + _SEEN_SECONDS
    while time.monotonic() < deadline:
        if (folder / RESULT_FILE).exists() and read_result(folder).status != "running":
            return
        time.sleep(0.1)
