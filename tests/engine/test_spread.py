"""Two processes with the batches of one learn what one learns, to rounding: for every method, and for its parts.

The processes are real ones that torchrun starts; starting torch takes longer than learning, so one pair does all cases.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor

from ductwork.engine.checkpoint import Vault
from ductwork.engine.ranks import Ranks
from tests.engine.spread_worker import CASES, layers, learn, report

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what two processes have learned."""
    folder = tmp_path_factory.mktemp("two")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command = [*torchrun, "-m", "tests.engine.spread_worker", str(folder)]
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


def assert_close(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float) -> None:
    """Each tensor differs by no more than a share of its largest number."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].shape == tensor.shape, name
        difference = (found[name].double() - tensor.double()).abs()
        assert difference.sum() == 0 or difference.max() <= tolerance * tensor.abs().max() + 1e-6, name


def test_layers_that_look_at_a_whole_batch(two: Path) -> None:
    assert_close(load_file(two / "layers.safetensors"), layers(Ranks()), 1e-5)


@pytest.mark.parametrize("case", CASES)
def test_two_processes_learn_what_one_learns(case: str, two: Path) -> None:
    alone = learn(case)
    expected, found = alone.state(), Vault(two / case).read()
    assert found is not None
    assert found.meta["rows"] == expected.meta["rows"]
    assert found.meta["extra"] == expected.meta["extra"]  # exemplars among them: herding picked the same images
    assert found.parts.keys() == expected.parts.keys()
    for name, part in expected.parts.items():
        assert_close(found.parts[name], part, 1e-3)
    # accuracies, similarities, plans; and images that went through the network, each of which was counted once
    assert_alike(json.loads((two / f"{case}.json").read_text()), json.loads(json.dumps(report(alone))))


def assert_alike(found: Any, expected: Any, where: str = "report") -> None:
    """The same structure, names and counts; fractions to rounding."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key in expected:
            assert_alike(found[key], expected[key], f"{where}.{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for place, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_alike(one, other, f"{where}[{place}]")
    elif isinstance(expected, float):
        # a cosine near 0 is as exact as the vectors that it is of, which agree to a thousandth
        near_zero = 1e-3 if "cosines" in where else 1e-6
        assert found == pytest.approx(expected, rel=1e-4, abs=near_zero), where
    else:
        assert found == expected, where
