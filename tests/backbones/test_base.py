from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from torch import nn

from ductwork.backbones.base import Backbone
from tests.backbones.models import WIDTH, images, small_vit

FAMILIES = (
    "test_vit",
    "test_resnet",
    "test_convnext",
    "test_efficientnet",
    "test_byobnet",
    "mobilenetv3_small_050",
)


@pytest.mark.parametrize("architecture", FAMILIES)
def test_features_are_what_the_classifier_would_see(architecture: str) -> None:
    """With the weights of a network that has a classifier, classifying the features gives its logits."""
    torch.manual_seed(0)
    whole: Any = timm.create_model(architecture, num_classes=7).eval()
    backbone = Backbone(timm.create_model(architecture, num_classes=0), name=architecture, timm_name="").eval()
    backbone.model.load_state_dict(whole.state_dict(), strict=False)
    batch = images(2, 48 if architecture != "test_vit" else backbone.input_size)
    with torch.no_grad():
        features = backbone(batch)
        classifier = whole.get_classifier()
        logits = classifier(features if isinstance(classifier, nn.Linear) else features[:, :, None, None])
        torch.testing.assert_close(logits.flatten(1), whole(batch), rtol=1e-5, atol=1e-5)
    assert features.shape == (2, backbone.num_features)


@pytest.mark.parametrize("architecture", ["vit_tiny_patch16_224", "deit3_small_patch16_224"])
def test_vit_features_are_the_class_token_after_the_final_norm(architecture: str) -> None:
    backbone = small_vit(architecture)
    with torch.no_grad():
        assert torch.equal(backbone(images()), backbone.model.forward_features(images())[:, 0])


def test_distilled_features_are_the_mean_of_both_tokens() -> None:
    backbone = small_vit("deit_tiny_distilled_patch16_224")
    with torch.no_grad():
        tokens = backbone.model.forward_features(images())
        assert torch.equal(backbone(images()), (tokens[:, 0] + tokens[:, 1]) / 2)


def test_swin_features() -> None:
    swin: dict[str, Any] = {"img_size": 56, "embed_dim": 24, "depths": (1, 1), "num_heads": (3, 6), "num_classes": 0}
    model = timm.create_model("swin_tiny_patch4_window7_224", **swin)
    backbone = Backbone(model, name="swin", timm_name="", input_size=56).eval()
    assert backbone(images(2, 56)).shape == (2, backbone.num_features)
    assert backbone.prompt_obstacle == "it is timm's SwinTransformer, not a plain VisionTransformer"


def test_what_it_says_about_itself() -> None:
    model = timm.create_model("vit_tiny_patch16_224.augreg_in21k_ft_in1k", num_classes=0, depth=1, img_size=48)
    backbone = Backbone(model, name="mine", timm_name="vit_tiny_patch16_224.augreg_in21k_ft_in1k", input_size=48)
    assert backbone.input_size == 48
    assert backbone.data_config["input_size"] == (3, 48, 48)
    assert backbone.data_config["mean"] == (0.5, 0.5, 0.5)
    assert backbone.data_config["interpolation"] == "bicubic"
    assert backbone.data_config["crop_pct"] == 0.9
    assert backbone.is_vit
    assert not backbone.has_batch_norm
    assert Backbone(timm.create_model("test_resnet", num_classes=0), name="r", timm_name="").has_batch_norm
    assert "name='mine'" in repr(backbone)


def test_digest_is_that_of_the_weights_at_construction() -> None:
    backbone = small_vit()
    before = backbone.sha256
    with torch.no_grad():
        backbone.model.cls_token.add_(1)
    assert backbone.sha256 == before
    assert small_vit().sha256 == before
    assert Backbone(backbone.model, name="", timm_name="").sha256 != before


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"class_token": False, "global_pool": "avg"}, "no class token"),
        ({"global_pool": "avg"}, "pooled from the patches"),
        ({"global_pool": "map"}, "pooled from the patches"),
        ({"block_fn": timm.models.vision_transformer.ResPostBlock}, "its blocks are ResPostBlock"),
        ({"attn_layer": "diff"}, "its attention is DiffAttention"),
    ],
)
def test_vits_that_cannot_take_prompts_say_why(options: dict[str, Any], reason: str) -> None:
    backbone = small_vit(**options)
    assert not backbone.is_vit
    assert reason in (backbone.prompt_obstacle or "")
    assert backbone(images()).shape == (4, WIDTH)
