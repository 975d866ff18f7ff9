"""The commands as a user meets them, in processes of their own where that matters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Command, quick

COMMANDS = ["demo", "run", "report", "list"]


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, ductwork.cli.main; print({'torch', 'numpy', 'timm', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help(command: str, ductwork: Command) -> None:
    done = ductwork(*command.split(), "--help")
    assert done.code == 0
    assert "Usage" in done.out


def test_help_answers_in_half_a_second() -> None:
    words = [sys.executable, "-m", "ductwork.cli.main", "--help"]
    times = []
    for _ in range(3):
        before = os.times()
        subprocess.run(words, capture_output=True, check=True)
        after = os.times()
        times.append(after.children_user + after.children_system - before.children_user - before.children_system)
    # time of the processor: on an idle machine it is the time that passes, on a busy one it is still ours
    assert min(times) < 0.5, times


@pytest.mark.parametrize("topic", ["methods", "streams", "backbones", "recipes"])
def test_list(topic: str, ductwork: Command) -> None:
    done = ductwork("list", topic)
    assert done.code == 0
    expected = {"methods": "simplecil", "streams": "demo", "backbones": "vit_base_patch16_224.augreg_in21k_ft_in1k"}
    assert expected.get(topic, "variation-3") in done.out


def test_run_twice_says_that_it_is_done(ductwork: Command, tmp_path: Path) -> None:
    words = ["run", *quick("method=finetune"), "order=[handwritten]", "--out", tmp_path / "r"]
    words = [w for w in words if "retrain" not in str(w)]
    first = ductwork(*words)
    assert first.code == 0, first.err
    result = json.loads((tmp_path / "r" / "result.json").read_text())
    assert result["status"] == "done"
    before = (tmp_path / "r" / "result.json").stat().st_mtime_ns
    second = ductwork(*words)
    assert second.code == 0
    assert "already done" in second.out
    assert (tmp_path / "r" / "result.json").stat().st_mtime_ns == before
    names = {path.name for path in (tmp_path / "r").iterdir()}
    assert {"config.yaml", "metrics.jsonl", "result.json", "checkpoint"} <= names
    suffixes = {path.suffix for path in (tmp_path / "r" / "checkpoint").iterdir()}
    assert suffixes == {".safetensors", ".json"}
