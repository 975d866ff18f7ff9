"""Random looks for grey glyph masks: stroke, pose, clutter, blur, colours, noise, a whole batch at a time.

The looks are generic on purpose. None imitates a demo domain; together they make features that do not
care about colour, polarity or sharpness.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

SIDE = 32


def _some(n: int, share: float) -> Tensor:
    return (torch.rand(n) < share).nonzero().squeeze(1)


def restroke(ink: Tensor) -> Tensor:
    """Fatten, thin or hollow out the strokes of some glyphs. ``ink`` is [n, 1, h, w] in 0..1."""
    fat, thin, hollow = _some(len(ink), 0.25), _some(len(ink), 0.1), _some(len(ink), 0.12)
    ink = ink.clone()
    ink[fat] = F.max_pool2d(ink[fat], 3, 1, 1)
    ink[thin] = -F.max_pool2d(-ink[thin], 2, 1, 1)[..., :48, :48]
    ink[hollow] = F.max_pool2d(ink[hollow], 5, 1, 2) - ink[hollow]
    return ink


def pose(ink: Tensor) -> Tensor:
    """Rotate, shear, scale and shift each glyph and sample it at 32 x 32."""
    n = len(ink)
    angle = torch.randn(n) * 0.17
    scale = torch.exp(torch.randn(n, 2) * 0.1 + torch.randn(n, 1) * 0.14)
    shear = torch.randn(n) * 0.17
    matrix = torch.zeros(n, 2, 3)
    matrix[:, 0, 0] = angle.cos() * scale[:, 0]
    matrix[:, 0, 1] = (-angle.sin() + shear) * scale[:, 0]
    matrix[:, 1, 0] = angle.sin() * scale[:, 1]
    matrix[:, 1, 1] = angle.cos() * scale[:, 1]
    matrix[:, :, 2] = torch.randn(n, 2) * 0.09
    grid = F.affine_grid(matrix, [n, 1, SIDE, SIDE], align_corners=False)
    # A coarse random field bends the strokes, as hands and cheap printers do.
    bend = F.interpolate(torch.randn(n, 2, 4, 4) * 0.05, size=SIDE, mode="bilinear", align_corners=True)
    return F.grid_sample(ink, grid + bend.permute(0, 2, 3, 1), align_corners=False)


def clutter(ink: Tensor, share: float = 0.25) -> Tensor:
    """Let a neighbour glyph reach into the tile from the left or the right."""
    rows = _some(len(ink), share)
    other = ink[torch.randperm(len(ink))[: len(rows)]]
    shift = int(torch.randint(19, 26, ()).item()) * (1 if torch.rand(()) < 0.5 else -1)
    ink = ink.clone()
    moved = torch.zeros_like(other)
    if shift > 0:
        moved[..., shift:] = other[..., :-shift]
    else:
        moved[..., :shift] = other[..., -shift:]
    ink[rows] = torch.maximum(ink[rows], moved)
    return ink


def soften(ink: Tensor) -> Tensor:
    """Blur some tiles and send some others through a lower resolution."""
    ink = ink.clone()
    for sigma in (0.7, 1.2):
        rows = _some(len(ink), 0.15)
        taps = torch.exp(-(torch.arange(-3, 4) ** 2) / (2 * sigma**2))
        kernel = (taps / taps.sum()).outer(taps / taps.sum())[None, None]
        ink[rows] = F.conv2d(ink[rows], kernel, padding=3)
    for side in (10, 14, 18):
        rows = _some(len(ink), 0.07)
        low = F.interpolate(ink[rows], size=side, mode="area")
        mode = "nearest" if torch.rand(()) < 0.5 else "bilinear"
        ink[rows] = F.interpolate(low, size=SIDE, mode=mode)
    return ink


def colour(ink: Tensor) -> Tensor:
    """Paint ink and ground: grey or coloured, either polarity, with an uneven ground. [n, 3, 32, 32] in 0..1."""
    n = len(ink)
    ground, paint = torch.rand(n, 3), torch.rand(n, 3)
    grey = torch.rand(n, 1) < 0.45
    ground = torch.where(grey, ground.mean(1, keepdim=True), ground)
    paint = torch.where(grey, paint.mean(1, keepdim=True), paint)
    # Push the brightness of ink and ground apart, or a third of the glyphs could not be read by anyone.
    gap = torch.empty(n, 1).uniform_(0.25, 0.95) * torch.where(torch.rand(n, 1) < 0.5, 1.0, -1.0)
    middle = torch.rand(n, 1) * (1 - gap.abs()) + gap.abs() / 2
    ground = ground - ground.mean(1, keepdim=True) + middle - gap / 2
    paint = paint - paint.mean(1, keepdim=True) + middle + gap / 2
    uneven = F.interpolate(torch.randn(n, 1, 3, 3), size=SIDE, mode="bilinear", align_corners=True)
    uneven = uneven * torch.rand(n, 1, 1, 1) * 0.25 * gap.abs()[:, :, None, None]
    image = ground[:, :, None, None] * (1 - ink) + paint[:, :, None, None] * ink + uneven
    noise = torch.rand(n, 1, 1, 1).pow(2) * 0.16
    return (image + noise * torch.randn_like(image)).clamp(0, 1)


def random_style(masks: Tensor) -> Tensor:
    """Masks uint8 [n, 48, 48] to images [n, 3, 32, 32] in 0..1, each in a look of its own."""
    ink = masks[:, None].float() / 255
    return colour(soften(clutter(pose(restroke(ink)))))


def plain_style(masks: Tensor) -> Tensor:
    """Dark ink on light ground, upright: to measure with."""
    ink = F.interpolate(masks[:, None].float() / 255, size=SIDE, mode="area")
    return (1 - ink).expand(-1, 3, -1, -1)


def cosine(step: int, steps: int, warmup: int) -> float:
    """Learning-rate factor: linear warm-up, then half a cosine."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))
