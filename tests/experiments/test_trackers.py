"""Trackers against their real local stores, read back with their own readers."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import wandb
from mlflow import MlflowClient
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto import wandb_internal_pb2

from ductwork.engine.progress import Silent
from ductwork.errors import ConfigError, DuctworkError, GridError
from ductwork.experiments.config import RunConfig, load_config
from ductwork.experiments.grid import Grid
from ductwork.experiments.plan import make_plan
from ductwork.experiments.results import EpochRecord, RunResult, read_metrics
from ductwork.experiments.run import run
from ductwork.experiments.trackers import Trackers
from tests.experiments.pictures import stable

ENGINE = ["engine.precision=fp32", "engine.accelerator=cpu", "engine.workers=0"]
# work that is done again is told again; without a cache, images are decoded again, too
ENGINE += ["engine.checkpoint=stage", "engine.cache=false"]
SETTINGS = ["method=finetune", "params.epochs=2", "params.batch_size=12", *ENGINE]
TRACK = "track=[tensorboard, mlflow, wandb]"


class Impatient(Silent):
    """Somebody who presses Ctrl-C when the second domain is about to be tested, and who hears what is said."""

    def __init__(self, patience: int = 2) -> None:
        self.patience, self.heard = patience, list[str]()

    def begin(self, work: str, images: int) -> None:
        self.patience -= work == "test"
        if not self.patience:
            raise KeyboardInterrupt

    def say(self, line: str) -> None:
        self.heard.append(line)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowClient]:
    """Everything stays on this machine; gives a client of MLflow's data base."""
    with pytest.MonkeyPatch.context() as patch:
        uri = f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'runs.db'}"
        patch.setenv("MLFLOW_TRACKING_URI", uri)
        patch.setenv("WANDB_MODE", "offline")
        yield MlflowClient(tracking_uri=uri)
        wandb.teardown()


@pytest.fixture(scope="module")
def folder(stores: MlflowClient, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was interrupted when its second stage had been logged but not saved, and went on."""
    out = tmp_path_factory.mktemp("tracked") / "run"
    config = load_config(None, [f"stream={photos}", *SETTINGS, TRACK])
    with pytest.raises(KeyboardInterrupt):
        run(config, out, progress=Impatient())
    assert mlflow_run(stores, out).info.status == "KILLED"
    watching = Impatient(patience=99)
    run(config, out, progress=watching)
    assert not [line for line in watching.heard if "warning" in line]
    return out


def mlflow_run(client: MlflowClient, out: Path) -> Any:
    """The one run that MLflow has for a folder."""
    experiment = client.get_experiment_by_name("ductwork")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id], f"tags.folder = '{out}'")
    return found


def expected(out: Path) -> dict[str, list[float]]:
    """What every store must have of the run, in this order."""
    result, epochs = RunResult.model_validate_json((out / "result.json").read_text()), list(read_metrics(out))
    assert len(epochs) == 4 and all(isinstance(epoch, EpochRecord) for epoch in epochs)
    assert result.A_bar is not None
    return {
        "finetune/loss": [epoch.loss or 0.0 for epoch in epochs],
        "epoch": [1, 2, 1, 2],
        "stage": [1, 1, 1, 2, 2, 2],
        "test/A_b": [stage.A_b for stage in result.stages],
        "test/accuracy/bright": [stage.accuracy["bright"] for stage in result.stages],
        "result/A_bar": [result.A_bar],
    }


STEPS = {"finetune/loss": [1, 2, 4, 5], "test/A_b": [3, 6], "result/A_bar": [7]}


def assert_complete(found: Mapping[str, list[tuple[int, float]]], out: Path) -> None:
    """Each event was told once, at its step."""
    for name, values in expected(out).items():
        assert [value for _, value in found[name]] == pytest.approx(values, rel=1e-6), name
    for name, steps in STEPS.items():
        assert [step for step, _ in found[name]] == steps


@pytest.mark.slow
def test_tensorboard_has_every_event_once(folder: Path) -> None:
    store = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    store.Reload()
    names = store.Tags()["scalars"]
    assert_complete({name: [(e.step, e.value) for e in store.Scalars(name)] for name in names}, folder)


@pytest.mark.slow
def test_mlflow_goes_on_with_its_run(folder: Path, photos: Path, stores: MlflowClient) -> None:
    found = mlflow_run(stores, folder)
    assert found.info.status == "FINISHED"
    assert found.info.run_name == f"finetune on {photos.name} seed 1993 epochs=2 batch_size=12"
    assert found.data.params["resolved.order"] == "['bright', 'dim']"
    assert found.data.params["method"] == "finetune"
    history = {name: stores.get_metric_history(found.info.run_id, name) for name in found.data.metrics}
    assert_complete({name: sorted((m.step, m.value) for m in values) for name, values in history.items()}, folder)


def wandb_records(content: bytes) -> Iterator[bytes]:
    """What a file of W&B's holds: after 7 bytes, records in the log format of LevelDB, in blocks of 32 KiB."""
    at, whole = 7, b""
    while len(content) - at > 7:
        if 32768 - at % 32768 < 7:  # too little room for the head of a record
            at += 32768 - at % 32768
            continue
        _, length, part = struct.unpack_from("<IHB", content, at)
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if part in (1, 4):  # a whole record, or the last part of one
            yield whole
            whole = b""


@pytest.mark.slow
def test_wandb_goes_on_with_its_run(folder: Path) -> None:
    files = sorted((folder / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2 and len({file.name for file in files}) == 1  # two sittings of one run
    found: dict[str, list[tuple[int, float]]] = {}
    for file in files:
        for data in wandb_records(file.read_bytes()):
            record = vars(wandb_internal_pb2)["Record"].FromString(data)
            for item in record.history.item if record.HasField("history") else ():
                name = "/".join(item.nested_key) or item.key
                if not name.startswith("_"):
                    found.setdefault(name, []).append((record.history.step.num, float(item.value_json)))
    assert_complete(found, folder)


@pytest.mark.slow
def test_trackers_change_nothing(folder: Path, photos: Path, tmp_path: Path) -> None:
    run(load_config(None, [f"stream={photos}", *SETTINGS]), tmp_path / "run")
    assert stable(tmp_path / "run") == stable(folder)


@pytest.mark.slow
def test_a_run_that_fails_has_failed_there_too(stores: MlflowClient, photos: Path, tmp_path: Path) -> None:
    pairs = [f"stream={photos}", *SETTINGS, "params.lr_backbone=1e30", "params.lr_head=1e30", "track=[mlflow]"]
    with pytest.raises(DuctworkError, match="training diverged"):
        run(load_config(None, pairs), tmp_path / "run")
    assert mlflow_run(stores, tmp_path / "run").info.status == "FAILED"


@pytest.mark.slow
def test_a_tracker_that_fails_is_left_out(
    folder: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")  # where nobody answers
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    watching = Impatient(patience=99)
    result = run(load_config(None, [f"stream={photos}", *SETTINGS, "track=[mlflow]"]), tmp_path, progress=watching)
    (warning,) = [line for line in watching.heard if "warning" in line]
    assert warning.startswith("warning: mlflow failed, and the run goes on without it: ")
    assert result.status == "done"
    assert stable(tmp_path) == stable(folder)


def test_who_is_told_does_not_make_another_run() -> None:
    assert RunConfig(track=["mlflow"]).name() == RunConfig().name()


def test_a_missing_library_is_said_before_the_first_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # as Python does where there is none
    with pytest.raises(ConfigError, match=r"^track: wandb needs a package .*: pip install 'ductwork\[track\]'$"):
        run(load_config(None, ["track=[wandb]"]), tmp_path)


def test_a_grid_with_a_missing_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    grid = Grid.model_validate({"methods": ["simplecil", "duct"], "defaults": {"track": ["mlflow"]}})
    with pytest.raises(GridError, match=r"^track: mlflow needs a package ") as found:
        make_plan(grid, tmp_path)
    assert len(found.value.problems) == 1  # not for each run


def test_without_an_account_nobody_is_asked_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "WANDB_CONFIG_DIR"):  # where keys are kept
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    wandb.teardown()
    heard: list[str] = []
    with Trackers(["wandb"], tmp_path, heard.append).following("a run", {}):
        pass
    assert heard == [
        "warning: wandb failed, and the run goes on without it: no account is known: run `wandb login`, "
        "or set WANDB_MODE=offline"
    ]
    wandb.teardown()


def test_an_unknown_tracker() -> None:
    with pytest.raises(ConfigError, match=r"track\.0 = 'tensorflow'"):
        load_config(None, ["track=[tensorflow]"])
