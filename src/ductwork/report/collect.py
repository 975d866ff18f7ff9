"""Find runs on disk and read them; a damaged one never hides the others."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ductwork.errors import CheckpointError, DuctworkError
from ductwork.experiments.results import (
    FORMAT,
    RESULT_FILE,
    Embedding,
    EpochRecord,
    RunResult,
    read_embedding,
    read_metrics,
    read_result,
)

# A run keeps its weights here; there is never a run below it and it can hold many files.
_NOT_RUNS = {"checkpoint"}


@dataclass(frozen=True)
class Run:
    """One run: its folder and what it wrote down."""

    folder: Path
    result: RunResult

    @property
    def done(self) -> bool:
        return self.result.status == "done"

    @property
    def progress(self) -> str:
        """The status in words, with the number of domains for a run that is not through."""
        if self.done:
            return "done"
        words = self.result.status.replace("-", " ")
        return f"{words}, {len(self.result.stages)} of {len(self.result.order)} domains"

    def metrics(self) -> list[EpochRecord]:
        """The epochs of the run; none when the file is missing or unreadable, for a report can do without."""
        try:
            return list(read_metrics(self.folder))
        except (OSError, UnicodeDecodeError):
            return []

    def embedding(self) -> Embedding | None:
        """Features of test images before and after; none when the run did not write them or they are unreadable."""
        try:
            return read_embedding(self.folder)
        except CheckpointError:
            return None


@dataclass(frozen=True)
class Scan:
    """What was found: runs in a fixed order, and one line for each thing the reader should know about."""

    runs: tuple[Run, ...]
    warnings: tuple[str, ...]


def scan(paths: Sequence[Path]) -> Scan:
    """Read every run under ``paths`` (folders, or ``result.json`` files); damaged ones become warnings.

    Raises ``DuctworkError`` for a path that is missing or holds no run, ``CheckpointError`` when none can be read.
    """
    if not paths:
        raise DuctworkError("no folder to report on: name at least one folder of runs")
    runs: dict[Path, Run] = {}
    warnings: dict[Path, str] = {}
    for path in paths:
        found = False
        for file in _result_files(Path(path)):
            found = True
            key = file.resolve()
            if key in runs or key in warnings:
                continue
            try:
                runs[key] = Run(file.parent, _read(file))
            except CheckpointError as error:
                warnings[key] = " ".join(str(error).split())
        if not found:
            raise CheckpointError(f"{path} holds no run: no {RESULT_FILE} in it or in any folder below it")
    if not runs:
        raise CheckpointError(next(iter(warnings.values())))
    ordered = sorted(runs.values(), key=_sort_key)
    newer = [
        f"{run.folder}: written in format {run.result.format}, newer than this report understands ({FORMAT})"
        for run in ordered
        if run.result.format > FORMAT
    ]
    return Scan(tuple(ordered), (*sorted(warnings.values()), *newer))


def collect(paths: Sequence[Path]) -> list[Run]:
    """Every readable run under ``paths``, in a fixed order (see :func:`scan` for what could not be read)."""
    return list(scan(paths).runs)


def _read(file: Path) -> RunResult:
    try:
        return read_result(file)
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror or error}") from None


def _result_files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    if not path.is_dir():
        raise DuctworkError(f"{path} does not exist: name a folder of runs")
    for folder, below, files in os.walk(path):
        below[:] = sorted(name for name in below if name not in _NOT_RUNS)
        if RESULT_FILE in files:
            yield Path(folder) / RESULT_FILE


def _sort_key(run: Run) -> tuple[object, ...]:
    result = run.result
    return (
        result.stream,
        result.backbone.name,
        result.method,
        result.recipe,
        result.order,
        result.seed,
        run.folder.as_posix(),
    )
