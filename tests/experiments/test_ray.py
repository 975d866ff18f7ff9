"""Grids on a real Ray cluster of two nodes on this machine, of which one is killed in the middle."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from ductwork.errors import ConfigError, DuctworkError
from ductwork.experiments.executors.ray import RayExecutor, room
from tests.experiments.grids import DUCT, assert_same, begin, wait_for_work

pytestmark = pytest.mark.slow

NODE: dict[str, Any] = {"num_cpus": 1, "memory": 4 << 30, "object_store_memory": 80 << 20}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A node that leads the cluster and has room for one run."""
    made: Any = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    yield made
    made.shutdown()


def works_in(node: Any, folder: Path) -> bool:
    """Whether a process that a node has started prints to the log of a run."""
    raylet = node.all_processes["raylet"][0].process.pid
    for task in Path(f"/proc/{raylet}/task").iterdir():
        for child in (task / "children").read_text().split():
            with suppress(OSError):
                if Path(f"/proc/{child}/fd/1").resolve() == folder / "log.txt":
                    return True
    return False


def test_ctrl_c_and_a_killed_node_cost_one_resume(cluster: Any, file: Path, unbroken: Path, tmp_path: Path) -> None:
    node, out = cluster.add_node(**NODE), tmp_path / "out"
    command = [DUCT, "--engine", "ray", "--address", cluster.address]
    process = begin(file, out, *command)
    wait_for_work(out, "duct", process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, complaints = process.communicate(timeout=60)
    assert process.returncode == 130, complaints
    assert "nothing is lost" in complaints
    assert "Traceback" not in complaints

    process = begin(file, out, *command)
    wait_for_work(out, "duct", process, lambda folder: works_in(node, folder))
    cluster.remove_node(node, allow_graceful=False)
    printed, complaints = process.communicate(timeout=240)
    assert process.returncode == 0, complaints
    assert "2 nodes, 1 CPU, 4 GB for each run" in printed
    assert complaints.count("goes on from its checkpoint") == 1
    assert "Traceback" not in complaints
    assert printed.splitlines()[-1] == f"2 runs in {out}: 2 done"
    assert_same(out, unbroken, "*-duct-*")


def test_a_cluster_that_does_not_answer() -> None:
    with pytest.raises(DuctworkError, match=r"no Ray cluster answers at 127\.0\.0\.1:1: .*`ray start --head`"):
        RayExecutor("127.0.0.1:1")


def test_a_run_that_fits_nowhere(cluster: Any) -> None:
    with pytest.raises(ConfigError, match=r"no node of the Ray cluster has room for 500 CPUs, 4 GB; ask for less"):
        RayExecutor(cluster.address, cpus=500)
    assert not ray.is_initialized()


def test_room_is_counted_by_node_not_by_sum() -> None:
    nodes = [{"CPU": 7.0, "memory": 8.0}, {"CPU": 1.0, "memory": 64.0}, {"GPU": 2.0, "CPU": 8.0, "memory": 64.0}]
    assert room(nodes, {"CPU": 2.0, "GPU": 0.0, "memory": 4.0}) == 2 + 0 + 4
    assert room(nodes, {"CPU": 1.0, "GPU": 0.5, "memory": 4.0}) == 4
