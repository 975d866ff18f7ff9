"""Recipes: what they say, what they give, and that a batch of them is its images."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ductwork.data.domain import ArraySource, ImageSet
from ductwork.data.draws import derive_seeds, uniform
from ductwork.data.loading import Loader
from ductwork.data.transforms import RECIPES, TransformSpec, check_name, resolve, test_transform, train_transform
from ductwork.errors import ConfigError

VIT = {
    "input_size": (3, 224, 224),
    "mean": (0.5, 0.5, 0.5),
    "std": (0.5, 0.5, 0.5),
    "interpolation": "bicubic",
    "crop_pct": 0.9,
    "crop_mode": "center",
}
SMALL = VIT | {"input_size": (3, 48, 48)}
SEEDS = derive_seeds(1, 0, np.arange(6))


def pictures(n: int = 6, height: int = 40, width: int = 60) -> Tensor:
    return torch.randint(0, 256, (n, 3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe(name: str) -> None:
    spec = resolve(name, backbone_config=SMALL)
    assert TransformSpec.from_dict(json.loads(json.dumps(spec.as_dict()))) == spec
    images = pictures()
    for transform in (train_transform(spec), test_transform(spec)):
        transform = pickle.loads(pickle.dumps(transform))
        one, many = transform(images[0]), transform.batch(images, SEEDS)
        assert one.shape == (3, 48, 48) and many.shape == (6, 3, 48, 48)
        assert one.dtype == many.dtype == torch.float32 and many.is_contiguous()
        assert torch.isfinite(many).all() and (images == pictures()).all()
        assert spec.name in repr(transform)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("width", [60, 40])
def test_an_image_does_not_depend_on_its_batch(name: str, train: bool, width: int) -> None:
    spec = resolve(name, backbone_config=SMALL)
    transform = train_transform(spec) if train else test_transform(spec)
    images = pictures(width=width)
    together = transform.batch(images, SEEDS)
    as_list = transform.batch([image.permute(1, 2, 0).contiguous().permute(2, 0, 1) for image in images], SEEDS)
    assert torch.equal(together, as_list)
    assert torch.equal(together[2:5], transform.batch(images[2:5], SEEDS[2:5]))
    others = transform.batch(images, SEEDS[::-1].copy())
    assert torch.equal(together, others) is not train
    mixed = transform.batch([images[0], pictures(1, 90, 50)[0]], SEEDS[:2])
    assert torch.equal(mixed[0], together[0])


def test_the_papers_recipe() -> None:
    spec = resolve("paper", backbone_config=VIT)
    assert (spec.size, spec.crop_pct, spec.interpolation, spec.scale, spec.flip) == (
        224,
        0.875,
        "bilinear",
        (0.08, 1),
        0.5,
    )
    assert spec.mean == (0.485, 0.456, 0.406) and spec.std == (0.229, 0.224, 0.225)
    from torchvision.transforms import v2

    plain = v2.Compose(
        [
            v2.Resize(256),
            v2.CenterCrop(224),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(list(spec.mean), list(spec.std)),
        ]
    )
    image = pictures(1, 300, 400)[0]
    torch.testing.assert_close(test_transform(spec)(image), plain(image), atol=1e-5, rtol=1e-5)


def test_other_recipes() -> None:
    assert resolve("paper-jitter", backbone_config=VIT).brightness == 63 / 255
    unit = resolve("unit", backbone_config=VIT)
    assert unit.scale == (0.05, 1.0) and unit.interpolation == "bicubic"
    values = test_transform(unit)(pictures(1)[0])
    assert 0 <= values.min() < 0.05 and 0.95 < values.max() <= 1
    own = resolve("backbone", backbone_config=VIT)
    assert (own.mean, own.crop_pct, own.interpolation, own.size) == ((0.5,) * 3, 0.9, "bicubic", 224)
    assert resolve("backbone", backbone_config=VIT | {"crop_mode": "squash"}).crop_mode == "squash"
    assert (
        resolve("digits", backbone_config=VIT).flip == 0 and resolve("digits", backbone_config=VIT).mean == (0.5,) * 3
    )


def test_size_is_adjustable_and_keeps_proportions() -> None:
    spec = resolve("paper", backbone_config=VIT, size=112)
    picture = torch.zeros(3, 128, 128, dtype=torch.uint8)
    picture[:, 8:-8, 8:-8] = 255  # at 256 to 224, or 128 to 112, exactly the centre remains
    assert torch.equal(test_transform(spec)(picture).amin((1, 2)), test_transform(spec)(picture).amax((1, 2)))


def test_digits_move_a_little_and_are_never_mirrored() -> None:
    spec = resolve("digits", backbone_config=VIT | {"input_size": (3, 32, 32), "mean": (0, 0, 0), "std": (1, 1, 1)})
    glyph = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    glyph[..., 8:24, 8:12] = 255  # a stroke left of the middle
    seeds = derive_seeds(0, 0, np.arange(500))
    moved = train_transform(spec).batch(glyph.expand(500, -1, -1, -1), seeds)
    rows, columns = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    mass = moved[:, 0].sum((1, 2))
    x, y = (moved[:, 0] * columns).sum((1, 2)) / mass, (moved[:, 0] * rows).sum((1, 2)) / mass
    assert x.max() < 15.5 and abs(x.mean() - 9.5) < 0.5 and abs(y.mean() - 15.5) < 0.3
    assert 1 < x.std() < 3 and moved.min() >= 0 and moved.max() < 1.001
    still = TransformSpec.from_dict(spec.as_dict() | {"degrees": 0.0, "translate": 0.0, "zoom": [1.0, 1.0]})
    torch.testing.assert_close(train_transform(still)(glyph[0]), test_transform(still)(glyph[0]), atol=1e-4, rtol=0)


def test_uniform_draws() -> None:
    draws = uniform(derive_seeds(5, 3, np.arange(20000)), 4)
    assert draws.shape == (20000, 4) and draws.min() >= 0 and draws.max() < 1
    assert np.abs(draws.mean(0) - 0.5).max() < 0.01 and np.abs(np.corrcoef(draws.T) - np.eye(4)).max() < 0.03


@pytest.mark.parametrize("name", ["paper-jitter", "digits"])
def test_through_a_loader_with_workers_and_ranks(name: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (10, 32, 32, 3), dtype=np.uint8)
    images = ImageSet(ArraySource(pixels, tuple(map(str, range(10)))), np.zeros(10, np.int64), ("a",))
    transform = train_transform(resolve(name, backbone_config=SMALL))

    def read(**options: Any) -> list[Tensor]:
        return [batch.inputs for batch in Loader(images, transform, batch_size=4, shuffle=True, **options).epoch(3)]

    alone = read()
    assert all(torch.equal(a, b) for a, b in zip(alone, read(workers=1), strict=True))
    halves = zip(read(world=2, rank=0), read(world=2, rank=1), strict=True)
    assert all(torch.equal(a, torch.cat(pair)) for a, pair in zip(alone, halves, strict=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": 0}, "impossible"),
        ({"crop_pct": 1.5}, "impossible"),
        ({"interpolation": "bicubik"}, "did you mean 'bicubic'"),
        ({"crop_mode": "border"}, "unknown crop_mode"),
        ({"std": [0.0, 1.0, 1.0]}, "positive stds"),
        ({"colour": 1}, "unknown transform setting 'colour'"),
    ],
)
def test_impossible_specs(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TransformSpec.from_dict(resolve("paper", backbone_config=VIT).as_dict() | changes)


def test_unknown_names_and_configurations() -> None:
    with pytest.raises(ConfigError, match=r"unknown transform 'papre' \(did you mean 'paper'\?\)"):
        check_name("papre")
    with pytest.raises(ConfigError, match="lacks 'mean'"):
        resolve("backbone", backbone_config={"input_size": (3, 8, 8)})
    with pytest.raises(ConfigError, match="1 x 28 x 28"):
        resolve("unit", backbone_config={"input_size": (1, 28, 28)})
