"""Options of ``ductwork bench`` that belong together, or do not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Command


@pytest.mark.parametrize("option", ["--address", "--cpus", "--gpus", "--memory"])
def test_options_of_ray_are_for_ray(option: str, ductwork: Command, tmp_path: Path) -> None:
    found = ductwork("bench", tmp_path / "grid.yaml", option, "1")
    assert found.code == 2
    assert found.err == f"ductwork: {option} is for --engine ray; add it, or leave {option} out\n"


def test_ray_that_is_not_installed(ductwork: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as Python does where there is none
    found = ductwork("bench", tmp_path / "grid.yaml", "--engine", "ray")
    assert found.code == 2
    assert found.err.startswith("ductwork: --engine ray needs a package (")
    assert found.err.endswith("): pip install 'ductwork[cluster]'\n")
