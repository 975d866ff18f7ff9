"""Streams from Hugging Face datasets on disk."""

from __future__ import annotations

import pickle
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from ductwork.data.cache import ImageCache
from ductwork.data.images import read_image
from ductwork.data.inspect import check
from ductwork.data.loading import Loader
from ductwork.data.streams import open_stream
from ductwork.errors import DataError
from tests.data.miniatures import picture

datasets: Any = pytest.importorskip("datasets", reason="needs ductwork[hf]")


@pytest.fixture(autouse=True)
def _quiet() -> None:
    datasets.disable_progress_bars()


def columns(folder: Path, seeds: list[int]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {"image": [], "label": [], "domain": [], "caption": []}
    for seed in seeds:
        picture(folder / f"{seed}.png", seed)
        found["image"].append({"bytes": (folder / f"{seed}.png").read_bytes(), "path": None})
        found["label"].append(seed // 2 % 2)
        found["domain"].append(("day", "night")[seed % 2])
        found["caption"].append(f"picture {seed}")
    return found


def dataset(folder: Path, seeds: list[int], **changes: list[Any]) -> Any:
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    kinds |= {name: datasets.Value("string") for name in ("domain", "caption", *changes)}
    return datasets.Dataset.from_dict(columns(folder, seeds) | changes, features=datasets.Features(kinds))


def test_a_dictionary_of_parts(tmp_path: Path) -> None:
    parts = {"train": dataset(tmp_path, list(range(24))), "test": dataset(tmp_path, list(range(24, 32)))}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "photos")
    stream = open_stream(tmp_path / "photos")
    assert (stream.name, stream.order, stream.classes) == ("photos", ("day", "night"), ("cat", "dog"))
    assert [(len(d.train), len(d.test)) for d in stream] == [(12, 4), (12, 4)]
    for i in range(12):
        images = stream[1].train
        seed = int(images.name(i).removeprefix("train/"))
        assert seed % 2 == 1 and images.label_name(i) == ("cat", "dog")[seed // 2 % 2]
        assert torch.equal(images.read(i), read_image(tmp_path / f"{seed}.png"))
    assert len({int(images.source.signature(i)) for i in range(32)}) > 1
    assert open_stream(tmp_path / "photos").fingerprint == stream.fingerprint


def test_one_dataset_with_and_without_a_split(tmp_path: Path) -> None:
    split = ["train"] * 16 + ["validation"] * 8
    dataset(tmp_path, list(range(24)), split=split).save_to_disk(tmp_path / "a")
    assert [(len(d.train), len(d.test)) for d in open_stream(tmp_path / "a")] == [(8, 4), (8, 4)]
    dataset(tmp_path, list(range(24))).save_to_disk(tmp_path / "b")
    assert [(len(d.train), len(d.test)) for d in open_stream(tmp_path / "b", split=0.5)] == [(6, 6), (6, 6)]


def test_images_are_cached_and_travel_to_workers(tmp_path: Path) -> None:
    dataset(tmp_path, list(range(16))).save_to_disk(tmp_path / "a")
    time.sleep(0.05)  # what was written this very moment is not looked up a second time
    images = open_stream(tmp_path / "a")[0].train
    plain = torch.cat([batch.inputs for batch in Loader(images, torch.Tensor.float, batch_size=4, workers=1).epoch()])
    cache = ImageCache(tmp_path / "cache", 10**9)
    assert cache.cached(images, 64)[1] == len(images)
    again, decoded = cache.cached(open_stream(tmp_path / "a")[0].train, 64)
    assert decoded == 0 and all(torch.equal(again.read(i).float(), plain[i]) for i in range(len(images)))
    assert torch.equal(pickle.loads(pickle.dumps(images)).read(1), images.read(1))


def test_check_looks_into_it(tmp_path: Path) -> None:
    damaged = columns(tmp_path, list(range(16)))
    damaged["image"][3]["bytes"] = damaged["image"][3]["bytes"][:50]
    damaged["image"][5] = None
    kinds = {"image": datasets.Image(), "label": datasets.Value("int64"), "domain": datasets.Value("string")}
    damaged.pop("caption")
    datasets.Dataset.from_dict(damaged, features=datasets.Features(kinds)).save_to_disk(tmp_path / "a")
    found = [f for f in check(str(tmp_path / "a")) if f.severity == "error"]
    assert [(f.kind, f.where) for f in found] == [("empty", ("0000005",)), ("truncated", ("0000003",))]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.remove_columns("domain"), "there is no column 'domain'"),
        (lambda data: data.rename_column("label", "lable"), "there is no column 'label'.*did you mean 'lable'"),
        (lambda data: data.cast_column("image", {"bytes": datasets.Value("binary"), "path": datasets.Value("string")}),
         "holds no images"),
    ],
)  # fmt: skip
def test_faults_are_named(tmp_path: Path, change: Any, message: str) -> None:
    change(dataset(tmp_path, list(range(8)))).save_to_disk(tmp_path / "a")
    with pytest.raises(DataError, match=message):
        open_stream(tmp_path / "a")


def test_a_damaged_dataset(tmp_path: Path) -> None:
    dataset(tmp_path, list(range(8))).save_to_disk(tmp_path / "a")
    next((tmp_path / "a").glob("*.arrow")).write_bytes(b"no arrow")
    with pytest.raises(DataError, match="cannot be read as a saved dataset"):
        open_stream(tmp_path / "a")


def test_a_saved_dataset_needs_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset(tmp_path, list(range(8))).save_to_disk(tmp_path / "a")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install 'ductwork\[hf\]'"):
        open_stream(tmp_path / "a")
