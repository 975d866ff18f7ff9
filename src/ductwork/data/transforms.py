"""Named recipes from stored pixels (uint8) to what a backbone sees (float32), for training and for testing.

A recipe is written down as a :class:`TransformSpec`, plain numbers that are recorded with a run; torchvision is
imported when a transform is built from it. Sizes other than 224 keep the proportions of the resize and the crop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ductwork.data.draws import SeedArray, uniform
from ductwork.data.loading import Images, PerImage
from ductwork.errors import ConfigError, suggest

#: The recipes and what they are for.
RECIPES: dict[str, str] = {
    "backbone": "random crops and flips with the backbone's own resize, interpolation and normalisation",
    "paper": "the paper's: random crops and flips, resize to 256, crop of 224, ImageNet normalisation",
    "paper-jitter": "the paper's for CDDB and Office-Home: 'paper' with random brightness",
    "unit": "values from 0 to 1 without normalisation, stronger crops, bicubic resize (as in LAMDA-PILOT)",
    "digits": "for small glyphs: mild rotations, shifts and zooms instead of crops and flips",
}
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_FEW = 4  # images that stay in the processor's cache from one step to the next, and are still work for several threads
_INTERPOLATIONS = ("nearest", "bilinear", "bicubic")


@dataclass(frozen=True)
class TransformSpec:
    """Everything that decides how an image is prepared.

    Testing resizes the shorter side to ``size / crop_pct`` and cuts the centre (``crop_mode="squash"`` resizes both
    sides instead). Training cuts a random part, with the share ``scale`` of the area and an aspect in ``ratio``, and
    flips with probability ``flip``; or, where ``affine`` is set, it rotates by up to ``degrees``, shifts by up to the
    share ``translate`` of the size and zooms by a factor in ``zoom``.
    """

    name: str
    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: str = "bilinear"
    train_interpolation: str = "bilinear"
    crop_pct: float = 224 / 256
    crop_mode: str = "center"
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    brightness: float = 0.0
    affine: bool = False
    degrees: float = 0.0
    translate: float = 0.0
    zoom: tuple[float, float] = (1.0, 1.0)

    def __post_init__(self) -> None:
        if self.size < 1 or not 0 < self.crop_pct <= 1:
            raise ConfigError(f"an image size of {self.size} with crop_pct {self.crop_pct} is impossible")
        for which in (self.interpolation, self.train_interpolation):
            if which not in _INTERPOLATIONS:
                raise ConfigError(f"unknown interpolation {which!r}{suggest(which, _INTERPOLATIONS)}")
        if self.crop_mode not in ("center", "squash"):
            raise ConfigError(f"unknown crop_mode {self.crop_mode!r}{suggest(self.crop_mode, ('center', 'squash'))}")
        if len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise ConfigError(
                f"normalisation needs three means and three positive stds, not {self.mean} and {self.std}"
            )

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TransformSpec:
        known = {field.name for field in fields(cls)}
        for key in values:
            if key not in known:
                raise ConfigError(f"unknown transform setting {key!r}{suggest(key, known)}")
        plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return cls(**plain)


def check_name(name: str) -> str:
    """``name``, if a recipe is called that."""
    if name not in RECIPES:
        raise ConfigError(f"unknown transform {name!r}{suggest(name, RECIPES)}")
    return name


def resolve(name: str, *, backbone_config: Mapping[str, Any], size: int | None = None) -> TransformSpec:
    """The recipe ``name`` for a backbone, given its timm configuration (``model.pretrained_cfg`` as a mapping).

    ``size`` is the backbone's own unless it is given.
    """
    check_name(name)
    side = size or _side(backbone_config)
    if name == "unit":
        return TransformSpec(name, side, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), interpolation="bicubic", scale=(0.05, 1.0))
    paper = TransformSpec(name, side, *_IMAGENET)
    if name == "paper":
        return paper
    if name == "paper-jitter":
        return replace(paper, brightness=63 / 255)
    own = replace(
        paper,
        mean=tuple(_need(backbone_config, "mean")),
        std=tuple(_need(backbone_config, "std")),
        interpolation=_need(backbone_config, "interpolation"),
        train_interpolation=_need(backbone_config, "interpolation"),
        crop_pct=float(_need(backbone_config, "crop_pct")),
        crop_mode=backbone_config.get("crop_mode") or "center",
    )
    if name == "backbone":
        return own
    return replace(
        own, interpolation="bilinear", train_interpolation="bilinear", crop_pct=1.0, crop_mode="squash", flip=0.0,
        affine=True, degrees=10.0, translate=0.08, zoom=(0.9, 1.1),
    )  # fmt: skip


class PixelRecipe:
    """What transforms share that resize in uint8, which is fast, and normalise a whole batch at once, which is faster.

    Called with one image it gives one; a :class:`~ductwork.data.loading.Loader` uses the two steps of :meth:`batch`.
    """

    def __init__(self, spec: TransformSpec) -> None:
        self.spec = spec

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.spec})"

    @property
    def size(self) -> int:
        return self.spec.size

    def pixels(self, images: Images, seeds: SeedArray, out: Tensor) -> None:
        raise NotImplementedError

    def finish(self, pixels: Tensor, out: Tensor) -> Tensor:
        return normalise(pixels, out, self.spec)

    def batch(self, images: Images, seeds: SeedArray) -> Tensor:
        pixels = torch.empty(len(images), 3, self.size, self.size, dtype=torch.uint8)
        self.pixels(images, seeds, pixels)
        return self.finish(pixels, torch.empty(pixels.shape))


def draw_seed() -> SeedArray:
    """A seed from torch's generator, for transforms that are called with one image."""
    return torch.randint(-(2**63), 2**63 - 1, (1,)).numpy().view(np.uint64)


class RecipeTransform(PixelRecipe):
    """A recipe in torchvision's words, image by image: what every faster way is measured against."""

    def __init__(self, spec: TransformSpec, module: Callable[[Tensor], Tensor], *, draws: bool) -> None:
        super().__init__(spec)
        self._module, self._seeded = module, PerImage(module, torch_only=True) if draws else None

    def __call__(self, image: Tensor) -> Tensor:
        pixels = self._module(image)[None]
        return self.finish(pixels, torch.empty(pixels.shape))[0]

    def pixels(self, images: Images, seeds: SeedArray, out: Tensor) -> None:
        if self._seeded is not None:
            out.copy_(self._seeded.batch(images, seeds))
        elif isinstance(images, Tensor):
            out.copy_(self._module(images))
        else:
            for place, image in zip(out, images, strict=True):
                place.copy_(self._module(image))


class AffineTransform:
    """Rotation, shift, zoom and resize in one interpolation for a whole batch, every image with its own draw.

    Small images are many: called one by one, torchvision takes longer over them than a small backbone does.
    """

    def __init__(self, spec: TransformSpec, resize: Callable[[Tensor], Tensor]) -> None:
        self.spec, self._resize = spec, resize

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.spec})"

    def __call__(self, image: Tensor) -> Tensor:
        return self.batch(image[None], draw_seed())[0]

    def batch(self, images: Images, seeds: SeedArray) -> Tensor:
        spec, shapes = self.spec, {image.shape for image in images}
        if len(shapes) > 1:
            return torch.cat([self.batch(image[None], seeds[i : i + 1]) for i, image in enumerate(images)])
        images = images if isinstance(images, Tensor) else torch.stack(list(images))
        if images.shape[-2] != images.shape[-1] or images.shape[-1] > spec.size:
            images = self._resize(images)  # a grid would distort the first kind and skip pixels of the second
        grid = F.affine_grid(self._matrices(seeds), [len(images), 3, spec.size, spec.size], align_corners=False)
        moved = F.grid_sample(images.float(), grid, spec.train_interpolation, "border", align_corners=False)
        return normalise(moved, moved, spec)

    def _matrices(self, seeds: SeedArray) -> Tensor:
        """From places in the result to places in the image, both running from -1 to 1: ``[n, 2, 3]``."""
        spec = self.spec
        angle, zoom, right, down = uniform(seeds, 4).T
        turn = np.deg2rad(spec.degrees) * (2 * angle - 1)
        size = 1 / (spec.zoom[0] + zoom * (spec.zoom[1] - spec.zoom[0]))
        cos, sin = np.cos(turn) * size, np.sin(turn) * size
        shift = 2 * spec.translate
        rows = [[cos, -sin, shift * (2 * right - 1)], [sin, cos, shift * (2 * down - 1)]]
        return torch.from_numpy(np.array(rows).transpose(2, 0, 1).astype(np.float32))


def train_transform(spec: TransformSpec) -> RecipeTransform | AffineTransform:
    """From uint8 ``[3, H, W]`` to float32 ``[3, size, size]``, with augmentation.

    :func:`ductwork.data.augment.fast_train_transform` draws the same for many images at once.
    """
    from torchvision.transforms import v2

    if spec.affine:
        return AffineTransform(spec, _resize(spec, (spec.size, spec.size), spec.train_interpolation))
    steps: list[torch.nn.Module] = [
        v2.RandomResizedCrop(
            spec.size, scale=spec.scale, ratio=spec.ratio, interpolation=_mode(spec.train_interpolation), antialias=True
        )
    ]
    if spec.flip:
        steps.append(v2.RandomHorizontalFlip(spec.flip))
    if spec.brightness:
        steps.append(v2.ColorJitter(brightness=spec.brightness))
    return RecipeTransform(spec, v2.Compose(steps), draws=True)


def test_transform(spec: TransformSpec) -> RecipeTransform:
    """From uint8 ``[3, H, W]`` to float32 ``[3, size, size]``, without any chance in it."""
    from torchvision.transforms import v2

    if spec.crop_mode == "squash":
        return RecipeTransform(spec, _resize(spec, (spec.size, spec.size), spec.interpolation), draws=False)
    resize = _resize(spec, (int(spec.size / spec.crop_pct),), spec.interpolation)
    return RecipeTransform(spec, v2.Compose([resize, v2.CenterCrop(spec.size)]), draws=False)


test_transform.__test__ = False  # type: ignore[attr-defined]  # its name is not meant for pytest


def normalise(values: Tensor, out: Tensor, spec: TransformSpec) -> Tensor:
    """From values between 0 and 255, ``[n, 3, S, S]``, to the mean and deviation of ``spec``, in float32 ``out``."""
    mean, std = (255 * torch.tensor(each, device=out.device).view(3, 1, 1) for each in (spec.mean, spec.std))
    if out.device.type != "cpu":
        return out.copy_(values).sub_(mean).div_(std)
    for place, images in zip(torch.split(out, _FEW), torch.split(values, _FEW), strict=True):
        place.copy_(images).sub_(mean).div_(std)
    return out


def kept_side(spec: TransformSpec) -> int:
    """The shorter side that images may be brought to before ``spec`` prepares them, again and again.

    A random part is enlarged if it has fewer pixels than the result. The side is such that this happens to a quarter
    of the parts at most, the smallest ones, and never to what a test looks at; where whole images are squashed, it is
    twice the result, so that the second resize still has two pixels for each.
    """
    if spec.affine:
        return 2 * spec.size
    low, high = spec.scale
    train = math.ceil(spec.size / math.sqrt(low + 0.25 * (high - low)))
    test = 2 * spec.size if spec.crop_mode == "squash" else int(spec.size / spec.crop_pct)
    return max(train, test)


def _resize(spec: TransformSpec, size: tuple[int, ...], interpolation: str) -> torch.nn.Module:
    from torchvision.transforms import v2

    module: torch.nn.Module = v2.Resize(list(size), interpolation=_mode(interpolation), antialias=True)
    return module


def _mode(interpolation: str) -> Any:
    from torchvision.transforms import InterpolationMode

    return InterpolationMode(interpolation)


def _side(config: Mapping[str, Any]) -> int:
    channels, height, width = _need(config, "input_size")
    if channels != 3 or height != width:
        raise ConfigError(f"the backbone wants inputs of {channels} x {height} x {width}, not square RGB images")
    return int(height)


def _need(config: Mapping[str, Any], key: str) -> Any:
    if config.get(key) is None:
        raise ConfigError(f"the configuration of the backbone lacks {key!r}, which the transform needs")
    return config[key]
