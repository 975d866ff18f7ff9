"""Augmentation of whole batches: what torchvision draws image by image, drawn for all images of a batch at once.

The distribution is that of ``RandomResizedCrop``, ``RandomHorizontalFlip`` and ``ColorJitter(brightness)``; the draws
themselves are others, since they come from a hash of the image's seed and not from a generator.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from ductwork.data.domain import IntArray
from ductwork.data.draws import SeedArray, uniform
from ductwork.data.loading import Images
from ductwork.data.transforms import AffineTransform, PixelRecipe, RecipeTransform, TransformSpec, draw_seed
from ductwork.data.transforms import train_transform as plain_train_transform

_TRIES = 10  # torchvision's: then the largest part of the image that has an allowed aspect is taken


@dataclass(frozen=True)
class Draws:
    """What was drawn for ``n`` images: boxes ``[n, 4]`` (top, left, height, width), who is flipped, how bright."""

    boxes: IntArray
    flips: npt.NDArray[np.bool_]
    brightness: npt.NDArray[np.float64]


class CropTransform(PixelRecipe):
    """Random part, resize, flip and brightness, as ``spec`` says, for images of any sizes."""

    def __call__(self, image: Tensor) -> Tensor:
        return self.batch(image[None], draw_seed())[0]

    def draw(self, sizes: IntArray, seeds: SeedArray) -> Draws:
        """The chances of images of ``sizes`` ``[n, 2]`` (height, width)."""
        spec, numbers = self.spec, uniform(seeds, 2 * _TRIES + 4)
        boxes = _boxes(sizes, numbers[:, : 2 * _TRIES + 2], spec.scale, spec.ratio)
        low, high = max(0.0, 1 - spec.brightness), 1 + spec.brightness
        return Draws(boxes, numbers[:, -2] < spec.flip, low + numbers[:, -1] * (high - low))

    def pixels(self, images: Images, seeds: SeedArray, out: Tensor) -> None:
        sizes = np.array([image.shape[1:] for image in images], dtype=np.int64).reshape(-1, 2)
        drawn, side, mode = self.draw(sizes, seeds), [self.size, self.size], self.spec.train_interpolation
        smooth = mode != "nearest"
        for place, image, box, flip, light in zip(
            out, images, drawn.boxes.tolist(), drawn.flips.tolist(), drawn.brightness.tolist(), strict=True
        ):
            top, left, height, width = box
            part = image[None, :, top : top + height, left : left + width]
            # colours together: torch's resize is several times faster on what lies in memory like that
            part = part.contiguous(memory_format=torch.channels_last)
            part = F.interpolate(part, side, mode=mode, antialias=smooth)[0]
            place.copy_(part.flip(-1) if flip else part)
            if self.spec.brightness:
                place.copy_(place.mul(light).clamp_(0, 255))


def _boxes(
    sizes: IntArray, numbers: npt.NDArray[np.float64], scale: tuple[float, float], ratio: tuple[float, float]
) -> IntArray:
    """Of several tries the first that fits into its image, at a place of which each is as likely as any other."""
    height, width = sizes.T[:, :, None]
    area = height * width * (scale[0] + numbers[:, :_TRIES] * (scale[1] - scale[0]))
    low, high = np.log(ratio)
    aspect = np.exp(low + numbers[:, _TRIES : 2 * _TRIES] * (high - low))
    h, w = np.rint(np.sqrt(area / aspect)).astype(np.int64), np.rint(np.sqrt(area * aspect)).astype(np.int64)
    fits = (h > 0) & (h <= height) & (w > 0) & (w <= width)
    rows, first = np.arange(len(sizes)), fits.argmax(1)
    found = fits.any(1)
    whole_h, whole_w = _largest(sizes, ratio)
    h, w = np.where(found, h[rows, first], whole_h), np.where(found, w[rows, first], whole_w)
    room = np.stack([height[:, 0] - h, width[:, 0] - w], axis=1)
    drawn = (numbers[:, -2:] * (room + 1)).astype(np.int64)
    return np.concatenate([np.where(found[:, None], drawn, room // 2), h[:, None], w[:, None]], axis=1)


def _largest(sizes: IntArray, ratio: tuple[float, float]) -> tuple[IntArray, IntArray]:
    """Height and width of the largest part with an aspect in ``ratio``."""
    height, width = sizes.T
    h = np.where(width / height < ratio[0], np.rint(width / ratio[0]).astype(np.int64), height)
    w = np.where(width / height > ratio[1], np.rint(height * ratio[1]).astype(np.int64), width)
    return h, w


def fast_train_transform(spec: TransformSpec) -> CropTransform | RecipeTransform | AffineTransform:
    """What ``train_transform`` does, in distribution, at the price of a few microseconds for an image's chances."""
    return plain_train_transform(spec) if spec.affine else CropTransform(spec)
