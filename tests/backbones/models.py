"""Small random backbones for the tests."""

from __future__ import annotations

from typing import Any

import timm
import torch

from ductwork.backbones.base import Backbone

WIDTH = 48


def small_vit(architecture: str = "vit_tiny_patch16_224", **options: Any) -> Backbone:
    """Three blocks of three heads on 32 x 32 images: 16 patches."""
    torch.manual_seed(0)
    options = {"img_size": 32, "patch_size": 8, "depth": 3, "embed_dim": WIDTH, "num_heads": 3, **options}
    model = timm.create_model(architecture, num_classes=0, **options)
    # timm starts class tokens and biases at (almost) zero, where many mistakes would not show.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return Backbone(model, name=architecture, timm_name=architecture, input_size=32).eval()


def images(count: int = 4, size: int = 32) -> torch.Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(1))


def backward(output: Any) -> None:
    """Gradients of some function of ``output`` (Any: ``Tensor.backward`` has no types)."""
    output.square().sum().backward()
