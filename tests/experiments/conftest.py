"""Things that take seconds to make and that several test files look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from ductwork.experiments.bench import bench
from ductwork.experiments.executors.local import LocalExecutor
from ductwork.experiments.grid import load_grid
from ductwork.experiments.plan import make_plan
from tests.cli.conftest import ductwork
from tests.experiments.grids import Quiet, write_grid
from tests.experiments.pictures import pictures

__all__ = ["ductwork", "file", "photos", "unbroken"]


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pictures(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="session")
def file(photos: Path) -> Path:
    return write_grid(photos / "grid.yaml", photos)


@pytest.fixture(scope="session")
def unbroken(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of ``file``, done by two processes that nothing befell."""
    out = tmp_path_factory.mktemp("unbroken")
    results = bench(make_plan(load_grid(file), out), LocalExecutor(2), Quiet())
    assert [result.status for result in results] == ["done"] * 4
    return out
