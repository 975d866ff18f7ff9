"""The folder of a run: what lies in it, who may work in it, and what an earlier try left there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from ductwork.engine.checkpoint import write_atomically
from ductwork.errors import CheckpointError, ConfigError, DuctworkError
from ductwork.experiments.config import RunConfig, read_yaml
from ductwork.experiments.results import RESULT_FILE, RunResult, is_done, read_result
from ductwork.validation import validate

CONFIG_FILE = "config.yaml"
CHECKPOINT = "checkpoint"
LOCK_FILE = ".lock"
LOG_FILE = "log.txt"
NOW_FILE = ".now.json"


def conclude(out: Path, blank: RunResult, status: Literal["failed", "not-applicable"], reason: str) -> RunResult:
    """Write down how a run ended that did not end well; what it had found stays."""
    try:
        result = read_result(out)
    except CheckpointError:
        result = blank
    result = result.model_copy(update={"status": status, "reason": reason})
    out.mkdir(parents=True, exist_ok=True)
    write(out, result)
    return result


def write(out: Path, result: RunResult) -> None:
    write_atomically(out / RESULT_FILE, result.model_dump_json(indent=1, exclude_none=False).encode())


def earlier(out: Path, config: RunConfig) -> Mapping[str, Any] | None:
    """What an earlier try in this folder resolved; an error if the folder holds another run."""
    path = out / CONFIG_FILE
    if not path.exists():
        # a run that failed before it could begin leaves these
        own = {LOCK_FILE, LOG_FILE, NOW_FILE, f"{NOW_FILE}.new"} | (set() if is_done(out) else {RESULT_FILE})
        strangers = sorted(p.name for p in out.iterdir() if p.name not in own)
        if strangers:
            raise ConfigError(f"{out} is not empty and not a run (it holds {strangers[0]!r}); choose another --out")
        return None
    values = read_yaml(path)
    resolved = values.pop("resolved", None)
    if not isinstance(resolved, dict):
        raise CheckpointError(f"{path} was not written by a run; choose another --out")
    then, now = validate(RunConfig, values, str(path)).identity(), config.identity()
    for key in now:
        if then[key] != now[key]:
            raise ConfigError(f"{out} holds a run with {key} = {then[key]!r}, not {now[key]!r}; choose another --out")
    return resolved


@contextmanager
def locked(out: Path, patience: float = 0.0) -> Iterator[None]:
    """Only one process works in a run folder. The lock is the system's: it cannot outlive its process."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ConfigError(f"--out {out} is a file, not a folder") from None
    except OSError as error:
        raise ConfigError(f"cannot write to {out}: {error.strerror}") from None
    if not os.access(out, os.W_OK | os.X_OK):
        raise ConfigError(f"cannot write to {out}: permission denied")
    lock = FileLock(out / LOCK_FILE)
    try:
        lock.acquire(timeout=patience)
    except Timeout:
        raise DuctworkError(f"another process is at work in {out}; wait for it or choose another --out") from None
    try:
        yield
    finally:
        lock.release()
