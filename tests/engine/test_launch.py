"""Processes that are started together end together, and one line says why."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from ductwork.engine.launch import launch
from ductwork.engine.progress import Progress, Silent
from ductwork.engine.ranks import join
from ductwork.engine.settings import EngineSettings
from ductwork.errors import ConfigError, DataError, DuctworkError
from ductwork.experiments.config import RunConfig
from ductwork.experiments.run import _as_launched
from tests.experiments.pictures import pictures

pytestmark = pytest.mark.slow

CPU = EngineSettings(accelerator="cpu")


class Listener(Silent):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def say(self, line: str) -> None:
        self.heard.append(line)


def fail_on_the_second(progress: Progress) -> None:
    ranks = join(CPU)
    with ranks.one_voice():
        if not ranks.leads:
            raise DataError("image 7 is damaged")
        ranks.wait()  # for one that never comes


def find_other_images(photos: Path, out: Path, progress: Progress) -> None:
    """As on two machines with a folder of the same name, of which one lacks a picture."""
    mine = photos / os.environ["RANK"]
    pictures(mine)
    if os.environ["RANK"] == "1":
        (mine / "dim" / "top" / "7.png").unlink()
    _as_launched(RunConfig(method="simplecil", stream=str(mine), engine=CPU), out, None, progress)


def greet_and_be_killed(word: str, progress: Progress) -> None:
    ranks = join(CPU)
    number = ranks.largest(ranks.rank) + 1
    if ranks.leads:
        progress.say(f"{word} from {number}")
    ranks.wait()
    with ranks.one_voice():
        if not ranks.leads:
            os.kill(os.getpid(), signal.SIGKILL)
        ranks.wait()


def test_an_error_on_one_of_them_is_one_line_that_says_where(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DuctworkError, match=r"^image 7 is damaged \(process 2 of 2, on .+\)$"):
        launch(2, fail_on_the_second)
    assert capfd.readouterr().err == ""


def test_images_that_differ_are_found_before_the_first_batch(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DuctworkError, match=r"^the images here differ from those of the first .*\(process 2 of 2"):
        launch(2, find_other_images, tmp_path / "photos", tmp_path)
    assert capfd.readouterr().err == ""
    assert not (tmp_path / "config.yaml").exists()


def test_one_that_is_killed_takes_the_others_along() -> None:
    listener = Listener()
    with pytest.raises(DuctworkError, match=r"^process 2 of 2 was ended by SIGKILL.*run the same command again"):
        launch(2, greet_and_be_killed, "greetings", progress=listener)
    assert listener.heard == ["greetings from 2"]


def test_a_program_that_asks_for_several_is_told_how_to_start_them() -> None:
    with pytest.raises(ConfigError, match=r"torchrun --nnodes 2 --nproc_per_node 4 program\.py"):
        join(EngineSettings(devices=4, nodes=2))
