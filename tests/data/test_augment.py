"""Augmentation of batches is torchvision's in distribution, and pixel by pixel once the chances are known."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.stats import binomtest, ks_2samp
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as TF

from ductwork.data.augment import CropTransform, fast_train_transform
from ductwork.data.draws import SeedArray, derive_seeds
from ductwork.data.transforms import AffineTransform, TransformSpec, normalise, train_transform

SPEC = TransformSpec("paper-jitter", 32, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), brightness=63 / 255)
N = 2000
Numbers = npt.NDArray[np.float64]


def seeds(n: int = N) -> SeedArray:
    return derive_seeds(1993, 0, np.arange(n))


def picture(height: int, width: int, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (height, width, 3), dtype=torch.uint8, generator=draw)
    return pixels.permute(2, 0, 1)


def torchvisions(height: int, width: int, spec: TransformSpec) -> npt.NDArray[np.int64]:
    torch.manual_seed(5)
    crop = v2.RandomResizedCrop(spec.size, scale=spec.scale, ratio=spec.ratio)
    found = [crop.make_params([picture(height, width)]) for _ in range(N)]
    return np.array([[each[key] for key in ("top", "left", "height", "width")] for each in found])


def described(boxes: npt.NDArray[np.int64], height: int, width: int) -> dict[str, Numbers]:
    """Share of the area, aspect, and place within the room that the box leaves (where it leaves some)."""
    top, left, h, w = boxes.T.astype(float)
    room_down, room_right = height - h, width - w
    return {
        "scale": h * w / (height * width),
        "ratio": np.log(w / h),
        "down": top[room_down > 0] / room_down[room_down > 0],
        "right": left[room_right > 0] / room_right[room_right > 0],
    }


@pytest.mark.parametrize(("height", "width"), [(256, 256), (180, 320), (60, 600)])
@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.5, 0.6)])
def test_boxes_are_distributed_as_torchvisions(height: int, width: int, scale: tuple[float, float]) -> None:
    spec = TransformSpec("x", 32, SPEC.mean, SPEC.std, scale=scale)
    ours = CropTransform(spec).draw(np.tile([height, width], (N, 1)), seeds()).boxes
    assert (ours[:, :2] >= 0).all() and (ours[:, :2] + ours[:, 2:] <= [height, width]).all() and (ours[:, 2:] > 0).all()
    mine, theirs = described(ours, height, width), described(torchvisions(height, width, spec), height, width)
    for what in mine:
        assert abs(len(mine[what]) - len(theirs[what])) < 0.05 * N
        if len(mine[what]):  # where no part fits, the middle is taken and leaves no room on one side
            assert ks_2samp(mine[what], theirs[what]).pvalue > 0.001, what


def test_the_statistics_would_notice_a_difference() -> None:
    narrower = TransformSpec("x", 32, SPEC.mean, SPEC.std, scale=(0.16, 1.0))
    ours = CropTransform(narrower).draw(np.tile([256, 256], (N, 1)), seeds()).boxes
    theirs = torchvisions(256, 256, SPEC)
    assert ks_2samp(described(ours, 256, 256)["scale"], described(theirs, 256, 256)["scale"]).pvalue < 0.001


def test_flips_and_brightness_are_distributed_as_torchvisions() -> None:
    drawn = CropTransform(SPEC).draw(np.tile([40, 50], (N, 1)), seeds())
    torch.manual_seed(6)
    jitter = v2.ColorJitter(brightness=SPEC.brightness)
    theirs = [jitter.make_params([])["brightness_factor"] for _ in range(N)]
    assert ks_2samp(drawn.brightness, theirs).pvalue > 0.001
    assert binomtest(int(drawn.flips.sum()), N, 0.5).pvalue > 0.001
    never = CropTransform(TransformSpec("x", 32, SPEC.mean, SPEC.std, flip=0.0)).draw(
        np.tile([40, 50], (9, 1)), seeds(9)
    )
    assert not never.flips.any() and (never.brightness == 1).all()


def test_chances_are_independent_of_each_other() -> None:
    drawn = CropTransform(SPEC).draw(np.tile([256, 256], (N, 1)), seeds())
    places = described(drawn.boxes, 256, 256)
    table = np.stack([places["scale"], places["ratio"], drawn.boxes[:, 0], drawn.flips, drawn.brightness])
    table[2] /= np.maximum(1, 256 - drawn.boxes[:, 2])
    off_diagonal = np.corrcoef(table)[~np.eye(5, dtype=bool)]
    assert np.abs(off_diagonal).max() < 4.5 / np.sqrt(N)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "nearest"])
def test_pixels_are_torchvisions_once_the_chances_are_known(mode: str) -> None:
    spec = TransformSpec("x", 32, SPEC.mean, SPEC.std, train_interpolation=mode, brightness=0.3)
    images = [picture(40 + 9 * i, 90 - 7 * i, i) for i in range(8)]
    transform = CropTransform(spec)
    drawn = transform.draw(np.array([image.shape[1:] for image in images]), seeds(8))
    expected = []
    for image, box, flip, light in zip(images, drawn.boxes, drawn.flips, drawn.brightness, strict=True):
        part = TF.resized_crop(image, *box.tolist(), [32, 32], v2.InterpolationMode(mode), antialias=True)
        part = TF.horizontal_flip(part) if flip else part
        expected.append(TF.adjust_brightness(part, float(light)))
    found = torch.empty(8, 3, 32, 32, dtype=torch.uint8)
    transform.pixels(images, seeds(8), found)
    assert torch.equal(found, torch.stack(expected)) and drawn.flips.any() and not drawn.flips.all()
    numbers = transform.batch(images, seeds(8))
    assert torch.equal(numbers, normalise(found, torch.empty(found.shape), spec))


def test_an_image_does_not_depend_on_its_batch() -> None:
    images = [picture(40 + 9 * i, 60, i) for i in range(6)]
    transform = CropTransform(SPEC)
    together = transform.batch(images, seeds(6))
    assert torch.equal(together[2:4], transform.batch(images[2:4], seeds(6)[2:4]))
    assert not torch.equal(together, transform.batch(images, seeds(6)[::-1].copy()))
    torch.manual_seed(0)
    assert transform(images[0]).shape == (3, 32, 32) and not torch.equal(transform(images[0]), transform(images[0]))


def test_mean_and_spread_of_many_views_agree_with_the_plain_pipeline() -> None:
    image = picture(64, 96).float().mul(0.5).to(torch.uint8)
    image[:, :32] = 200  # so that it matters where a part is cut
    copies = [image] * 1500
    fast, plain = (
        fast_train_transform(SPEC).batch(copies, seeds(1500)),
        train_transform(SPEC).batch(copies, seeds(1500)),
    )
    spread = plain.std(0)
    assert ((fast.mean(0) - plain.mean(0)).abs() < 5 * spread * (2 / 1500) ** 0.5).all()
    assert ((fast.std(0) / spread - 1).abs() < 0.15).all()


def test_small_glyphs_keep_their_transform() -> None:
    spec = TransformSpec("digits", 28, SPEC.mean, SPEC.std, affine=True, degrees=10.0)
    assert isinstance(fast_train_transform(spec), AffineTransform)
