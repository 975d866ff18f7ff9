"""``glyph_vit``: a small vision transformer whose pre-trained weights come with the package.

It lets the demo, the tests and a first hour without a network show what domain-incremental learning
does to a real pre-trained backbone. It was trained on letters of open fonts and on doodles, never on a
digit (``pretraining/README.md`` has the data, the commands and the results).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer

NAME: Final = "glyph_vit"
INPUT_SIZE: Final = 32
MEAN: Final = (0.5, 0.5, 0.5)
STD: Final = (0.5, 0.5, 0.5)

_WIDTH: Final = 160
_DEPTH: Final = 4
_HEADS: Final = 5
_MLP_RATIO: Final = 3.0
_STEM: Final = (32, 64, 128)


def weights_path() -> Path:
    """Where the package keeps the weights (safetensors, half precision)."""
    return Path(__file__).parent / "assets" / f"{NAME}.safetensors"


def build() -> VisionTransformer:
    """The architecture, randomly initialised: 32 x 32 pixels in, one 160-dimensional [CLS] feature out.

    It is timm's own ``VisionTransformer`` on 16 patch tokens, so whatever hooks into timm blocks works.
    """
    from timm.layers.hybrid_embed import HybridEmbed
    from timm.models.vision_transformer import VisionTransformer
    from torch import nn

    # A plain patch embedding does not start to learn at this resolution within hundreds of steps; a
    # normalised convolutional stem does. GroupNorm, not BatchNorm: merging adds weight differences,
    # which means nothing for running statistics.
    layers: list[nn.Module] = []
    channels = 3
    for width in _STEM:
        layers += [nn.Conv2d(channels, width, 3, stride=2, padding=1, bias=False), nn.GroupNorm(8, width), nn.GELU()]
        channels = width
    embed = partial(HybridEmbed, backbone=nn.Sequential(*layers))
    model = VisionTransformer(
        img_size=INPUT_SIZE,
        patch_size=1,
        embed_dim=_WIDTH,
        depth=_DEPTH,
        num_heads=_HEADS,
        mlp_ratio=_MLP_RATIO,
        num_classes=0,
        global_pool="token",
        embed_layer=embed,
    )
    # For so few tokens the fused attention kernel makes a training step up to three times slower on
    # processors in bfloat16, and slower in full precision too.
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            setattr(module, "fused_attn", False)  # noqa: B010  timm declares it final
    return model
