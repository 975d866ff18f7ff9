"""A timm model as ductwork sees it: images go in, features come out, and it says what it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from timm.data.config import resolve_data_config
from timm.layers.attention import Attention
from timm.models.vision_transformer import Block, VisionTransformer
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ductwork.backbones.weights import digest


class Backbone(nn.Module):
    """A feature extractor.

    Args:
        model: A timm model that was built with ``num_classes=0``.
        name: The name under which the user asked for it.
        timm_name: ``architecture.tag`` in timm, or the architecture alone where there is no tag.
        input_size: Side of the square images it expects; the model's own setting if left out.
        data_config: Settings that replace those that timm knows (``mean``, ``std``, ``interpolation``, ...).

    Attributes:
        sha256: Digest of the weights as they were at construction, i.e. of the pre-trained weights.
        data_config: ``input_size``, ``interpolation``, ``mean``, ``std``, ``crop_pct`` and ``crop_mode``.
        prompt_obstacle: Why prompts cannot enter, or ``None`` if they can.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        name: str,
        timm_name: str,
        input_size: int | None = None,
        data_config: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        # Any: what timm's models share (forward_features, forward_head, ...) has no type of its own.
        self.model: Any = model
        self.name = name
        self.timm_name = timm_name
        self.num_features = _feature_width(model)
        self.data_config: dict[str, Any] = {**_data_config(model), **(data_config or {})}
        if input_size is not None:
            self.data_config["input_size"] = (3, input_size, input_size)
        self.sha256 = digest(model.state_dict())
        self.prompt_obstacle = _prompt_obstacle(model)
        self.has_batch_norm = any(isinstance(module, _BatchNorm) for module in model.modules())

    @property
    def input_size(self) -> int:
        """Side of the square images that the backbone expects."""
        return int(self.data_config["input_size"][-1])

    @property
    def is_vit(self) -> bool:
        """Whether it has the patch tokens, blocks and class token that prompts and adapters need."""
        return self.prompt_obstacle is None

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Features ``[N, d]`` of ``images [N, 3, H, W]``: what the original classifier would be applied to."""
        features: torch.Tensor = self.model.forward_head(self.model.forward_features(images), pre_logits=True)
        return features

    def extra_repr(self) -> str:
        return f"name={self.name!r}, timm_name={self.timm_name!r}, num_features={self.num_features}"


def _data_config(model: nn.Module) -> dict[str, Any]:
    resolve: Any = resolve_data_config  # untyped in timm
    return dict(resolve(model=model))


def _feature_width(model: Any) -> int:
    # Some networks widen the features between pooling and the classifier (EfficientNet does not, MobileNet v3 does).
    return int(getattr(model, "head_hidden_size", None) or model.num_features)


def _prompt_obstacle(model: nn.Module) -> str | None:
    """What keeps prompts out of ``model``, said so that it ends a sentence; ``None`` if nothing does."""
    kind = type(model).__name__
    if not isinstance(model, VisionTransformer):
        return f"it is timm's {kind}, not a plain VisionTransformer"
    if model.cls_token is None:
        return "it has no class token"
    if model.attn_pool is not None or model.global_pool != "token":
        return f"its features are pooled from the patches (global_pool={model.global_pool!r}), not from the class token"
    for block in model.blocks:
        if type(block) is not Block:
            return f"its blocks are {type(block).__name__}, not timm's pre-norm Block"
        if type(block.attn) is not Attention:
            return f"its attention is {type(block.attn).__name__}, not timm's Attention"
    return None
