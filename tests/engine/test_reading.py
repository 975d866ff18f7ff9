"""Runs read files through the cache, count what they decode, and learn the same from a full cache as from none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ductwork.data.cache import CachedSource
from ductwork.data.domain import Stream
from ductwork.data.folders import folders
from ductwork.data.transforms import TransformSpec, test_transform
from ductwork.engine.learner import Learner, StageReport
from ductwork.engine.reading import image_loader
from ductwork.engine.session import Session
from ductwork.engine.settings import EngineSettings
from ductwork.errors import ConfigError
from tests.conftest import SIZE, domain, tiny_backbone

SPEC = TransformSpec("paper", SIZE, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Stream:
    """Two domains of JPEGs that are larger than what is kept of them."""
    root = tmp_path_factory.mktemp("photos")
    for name in ("day", "night"):
        images = domain(name, train=6, test=3).train
        for i in range(len(images)):
            path = root / name / images.label_name(i) / f"{i}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = images.read(i).permute(1, 2, 0).numpy()
            Image.fromarray(pixels).resize((90, 80)).save(path)
    return folders(root)


def learned(photos: Stream, **settings: object) -> tuple[list[StageReport], Learner]:
    engine = EngineSettings.model_validate(
        {"accelerator": "cpu", "precision": "fp32", "workers": 0, "eval_batch_size": 8} | settings
    )
    params = {"epochs": 2, "batch_size": 8}
    learner = Learner("finetune", backbone=tiny_backbone(), params=params, transform=SPEC, settings=engine)
    return [learner.learn(each, tests=photos.seen(each)) for each in photos], learner


def test_what_is_learned_does_not_depend_on_what_the_cache_holds(photos: Stream, tmp_path: Path) -> None:
    cold, first = learned(photos, cache_dir=tmp_path)
    warm, second = learned(photos, cache_dir=tmp_path, workers=1)
    none, third = learned(photos, cache_dir=tmp_path / "small", cache_limit=1e-6)
    images = sum(len(each.train) + len(each.test) for each in photos)
    assert [report.work["decoded"] for report in warm] == [0, 0]
    assert sum(report.work["decoded"] for report in cold) == images
    passes = ("frozen", "train", "test")
    for report in none:  # and nothing is hidden where nothing could be kept
        assert report.work["decoded"] >= sum(report.work[key] for key in passes)
    expected = first.state().parts
    for other in (second, third):
        for name, tensors in other.state().parts.items():
            assert all(torch.equal(tensor, expected[name][key]) for key, tensor in tensors.items())


def test_without_the_cache_every_pass_decodes(photos: Stream, tmp_path: Path) -> None:
    plain, _ = learned(photos, cache=False, cache_dir=tmp_path)
    for report in plain:
        assert report.work["decoded"] == sum(report.work[key] for key in ("frozen", "train", "test"))
    assert not list(tmp_path.iterdir())


def test_images_come_from_the_cache_where_it_is_open(photos: Stream, tmp_path: Path) -> None:
    for cache in (True, False):
        settings = EngineSettings(accelerator="cpu", precision="fp32", workers=0, cache=cache, cache_dir=tmp_path)
        session, view = Session(settings), test_transform(SPEC)
        loader = image_loader(session, photos[0].train, view, title="x", batch_size=5)
        assert isinstance(loader._images.source, CachedSource) is cache
        assert sum(map(len, loader.epoch())) == len(photos[0].train)
        arrays = image_loader(session, domain("dusk").train, view, title="x", batch_size=5)
        assert not isinstance(arrays._images.source, CachedSource)


def test_a_folder_that_cannot_be_made_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"engine.cache_dir .* cannot be made"):
        Session(EngineSettings(accelerator="cpu", cache_dir=tmp_path / "file" / "cache"))
    with pytest.raises(ValueError, match="cache_limit"):
        EngineSettings(cache_limit=0)


def test_the_view_of_a_test_hardly_changes(photos: Stream, tmp_path: Path) -> None:
    session = Session(EngineSettings(accelerator="cpu", precision="fp32", workers=0, cache_dir=tmp_path))
    images, view = photos[0].train, test_transform(SPEC)
    loader = image_loader(session, images, view, title="x", batch_size=len(images))
    cached = next(loader.epoch()).inputs
    plain = view.batch([images.read(i) for i in range(len(images))], np.zeros(len(images), np.uint64))
    assert images.read(0).shape[1] > 58 >= cached.shape[-1]
    assert float((cached - plain).abs().mean()) < 2 / 127.5  # two grey levels
