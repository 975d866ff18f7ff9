"""Features of the frozen pre-trained backbone, computed once and reused by every run that shares a folder.

One safetensors file holds the features of one set of images, ``[n, d]`` in float32, with a digest of its content; its
name is a digest of everything that the features depend on. It takes ``4 n d`` bytes. Nothing else refers to the files:
they may be deleted at any time, and what is missing or damaged is computed again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as save_tensors
from torch import Tensor

from ductwork.backbones.base import Backbone
from ductwork.backbones.weights import digest
from ductwork.data.domain import ImageSet
from ductwork.data.loading import Transform
from ductwork.data.transforms import RecipeTransform
from ductwork.engine.checkpoint import write_atomically
from ductwork.engine.session import Session


class FeatureStore:
    """A folder of features. Of several processes that want the same ones, one computes and the others wait for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, key: str, compute: Callable[[], Tensor]) -> tuple[Tensor, bool]:
        """The features called ``key``, and whether they were there already."""
        path = self.folder / f"{key}.safetensors"
        found = _read(path)
        if found is not None:
            return found, True
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / f".{key}.lock"):
            found = _read(path)
            if found is not None:
                return found, True
            computed = compute().contiguous()
            content = {"features": computed}
            write_atomically(path, save_tensors(content, metadata={"sha256": digest(content)}))
            return computed, False


def sharable(session: Session, model: object, images: ImageSet, transform: Transform) -> str | None:
    """The key of features that other runs need, too: those of the very pre-trained backbone. None for any others."""
    if not session.settings.shared or session.world > 1 or not isinstance(transform, RecipeTransform):
        return None
    if type(model) is not Backbone or not _untouched(model):
        return None
    ordered = hashlib.sha256("\n".join(images.name(i) for i in range(len(images))).encode())
    facts: dict[str, Any] = {
        "network": [model.timm_name, model.sha256, hashlib.sha256(repr(model.model).encode()).hexdigest()],
        "images": [images.fingerprint, ordered.hexdigest()],
        "transform": transform.spec.as_dict(),
        "cache": session.settings.cache,
        "precision": session.precision,
        # what follows decides on the last bits only, and those are to be the same with and without sharing
        "batch": session.settings.eval_batch_size,
        "device": session.device.type,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _untouched(backbone: Backbone) -> bool:
    """Whether this is the pre-trained backbone and nothing else. The weights are looked at, nobody is believed."""
    modules = list(backbone.modules())
    hooked = any(module._forward_hooks or module._forward_pre_hooks for module in modules)
    training = any(module.training for module in modules)
    return not hooked and not training and digest(backbone.model.state_dict()) == backbone.sha256


def _read(path: Path) -> Tensor | None:
    """What the file holds, checked to the last bit; None where there is nothing that can be trusted."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            content = {"features": file.get_tensor("features")}
            expected = (file.metadata() or {}).get("sha256")
    except (SafetensorError, OSError):
        return None
    return content["features"] if digest(content) == expected else None
