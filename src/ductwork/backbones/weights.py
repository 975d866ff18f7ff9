"""Weights from files: read without running code, brought into timm's layout, and checked to fit completely."""

from __future__ import annotations

import argparse
import hashlib
import inspect
import pickle
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file as load_safetensors
from torch import nn

from ductwork.errors import BackboneError

State = dict[str, torch.Tensor]

SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".npz")

# Where training scripts put the network inside their checkpoint; averaged weights first, as timm has it.
_CONTAINERS = ("state_dict_ema", "model_ema", "state_dict", "model", "teacher")
# What wrappers put before every name.
_PREFIXES = ("_orig_mod.", "module.", "backbone.", "model.")
# Top-level modules that are classifiers or projection heads in timm, torchvision, DeiT and DINO.
_CLASSIFIERS = frozenset({"head", "head_dist", "heads", "fc", "classifier"})


def load(model: nn.Module, path: str | Path) -> None:
    """Load the file ``path`` into ``model``, a timm model without classifier.

    The file may come from timm, torchvision, DINO, DeiT or a training script, or be an original JAX ``.npz``;
    containers, wrapper prefixes and classifiers are taken off and position embeddings resized as timm does it.

    Raises:
        BackboneError: The file cannot be read, would run code, or does not fit ``model`` tensor by tensor.
    """
    path = _existing(path)
    if path.suffix == ".npz" and _is_jax(path):
        _load_jax(model, path)
        return
    wanted = model.state_dict()
    state = _convert(_strip_prefixes(read(path), wanted), model, path)
    unexpected = {key for key in state if key not in wanted and not _is_classifier(key, model)}
    # Files older than the counter (torch < 0.4.1) lack it, and no prediction depends on it.
    missing = {key for key in wanted if key not in state and not key.endswith("num_batches_tracked")}
    fitting = {key: tensor for key, tensor in state.items() if key in wanted}
    _check(path, model, fitting, wanted, missing=missing, unexpected=unexpected)
    model.load_state_dict(fitting, strict=False)


def read(path: str | Path) -> State:
    """The tensors of a ``.safetensors``, ``.pth``, ``.pt``, ``.bin`` or ``.npz`` file by name; runs no code."""
    path = _existing(path)
    try:
        content: Any = _READERS[path.suffix](path)
    except pickle.UnpicklingError as error:
        raise BackboneError(
            f"{path} is refused: it holds Python objects{_unsafe_globals(path)} and loading them could run code; "
            "save the state_dict alone, e.g. with safetensors.torch.save_file"
        ) from error
    except Exception as error:  # damaged files raise whatever their parser stumbles over
        reason = str(error).strip().split("\n")[0]
        raise BackboneError(f"{path} cannot be read as {path.suffix} weights: {reason}") from error
    return _unwrap(content, path)


def digest(state: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes, in the order of the names: equal iff the weights are equal."""
    sha = hashlib.sha256()
    for key in sorted(state):
        tensor = state[key].detach().cpu().contiguous()
        sha.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        if tensor.numel():
            sha.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()


def _existing(path: str | Path) -> Path:
    path = Path(path).expanduser()
    if path.suffix not in SUFFIXES:
        raise BackboneError(f"{path} has an unknown type of weights: use one of {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise BackboneError(f"there is no weights file {path}")
    return path


def _read_torch(path: Path) -> Any:
    # A Namespace of command-line arguments lies next to the weights in many checkpoints (timm, DeiT, DINO).
    with torch.serialization.safe_globals([argparse.Namespace]):
        return torch.load(path, map_location="cpu", weights_only=True)


def _read_npz(path: Path) -> State:
    with np.load(path, allow_pickle=False) as archive:
        return {key: torch.from_numpy(archive[key]) for key in archive.files}


_READERS: dict[str, Callable[[Path], Any]] = {
    ".safetensors": load_safetensors,
    ".pth": _read_torch,
    ".pt": _read_torch,
    ".bin": _read_torch,
    ".npz": _read_npz,
}


def _unsafe_globals(path: Path) -> str:
    with suppress(Exception):  # only decorates a message, and the file is hostile or damaged anyway
        names = torch.serialization.get_unsafe_globals_in_checkpoint(str(path))
        return f" ({', '.join(sorted(names)[:3])})" if names else ""
    return ""


def _unwrap(content: Any, path: Path) -> State:
    while isinstance(content, Mapping):
        inner = next((content[key] for key in _CONTAINERS if isinstance(content.get(key), Mapping)), None)
        if inner is None:
            break
        content = inner
    if not isinstance(content, Mapping):
        raise BackboneError(f"{path} holds a {type(content).__name__} and not a state_dict of named tensors")
    tensors = {key: value for key, value in content.items() if torch.is_tensor(value)}
    if not tensors:
        raise BackboneError(f"{path} holds no named tensors, only {_some(map(str, content)) or 'nothing'}")
    return tensors


def _strip_prefixes(state: State, wanted: Collection[str]) -> State:
    """Take wrapper prefixes off, in any nesting, unless the network itself has a module of that name."""
    prefixes = [prefix for prefix in _PREFIXES if not any(key.startswith(prefix) for key in wanted)]
    while prefix := next((p for p in prefixes if any(key.startswith(p) for key in state)), None):
        bare = {key: tensor for key, tensor in state.items() if not key.startswith(prefix)}
        state = bare | {key.removeprefix(prefix): t for key, t in state.items() if key.startswith(prefix)}
    return state


def _convert(state: State, model: nn.Module, path: Path) -> State:
    """Apply timm's own conversion for this family of models (other layouts, position embeddings of other sizes)."""
    convert = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    if convert is None:
        return state
    # DeiT-3 keeps its layer scale under other names; timm asks for that conversion by a flag.
    flags = {"adapt_layer_scale": True} if "adapt_layer_scale" in inspect.signature(convert).parameters else {}
    try:
        converted: State = convert(state, model, **flags)
    except Exception as error:
        raise BackboneError(
            f"{path} does not fit {type(model).__name__}: timm could not convert it ({type(error).__name__}: {error})"
        ) from error
    return converted


def _is_classifier(key: str, model: nn.Module) -> bool:
    configured = getattr(model, "pretrained_cfg", {}).get("classifier") or ()
    names = (configured,) if isinstance(configured, str) else tuple(configured)
    return key.split(".")[0] in _CLASSIFIERS or any(key.startswith(f"{name}.") for name in names)


def _check(
    path: Path,
    model: nn.Module,
    state: State,
    wanted: Mapping[str, torch.Tensor],
    *,
    missing: Collection[str],
    unexpected: Collection[str],
) -> None:
    shapes = {key: (tuple(tensor.shape), tuple(wanted[key].shape)) for key, tensor in state.items()}
    misshapen = [f"{key} {has} instead of {needs}" for key, (has, needs) in shapes.items() if has != needs]
    infinite = [key for key, tensor in state.items() if tensor.is_floating_point() and not tensor.isfinite().all()]
    problems = [
        f"{len(keys)} {what}: {_some(keys)}"
        for what, keys in (
            ("missing", missing),
            ("of another shape", misshapen),
            ("unexpected", unexpected),
            ("not finite", infinite),
        )
        if keys
    ]
    if problems:
        name = getattr(model, "pretrained_cfg", {}).get("architecture") or type(model).__name__
        raise BackboneError(f"{path} does not fit {name}: {'; '.join(problems)}")


def _some(names: Any, limit: int = 3) -> str:
    names = sorted(names)
    return ", ".join(names[:limit]) + (", ..." if len(names) > limit else "")


def _is_jax(path: Path) -> bool:
    with suppress(Exception), np.load(path, allow_pickle=False) as archive:
        return any("/" in name for name in archive.files)
    return False


def _load_jax(model: Any, path: Path) -> None:
    """Original JAX weights: timm's models know how to read their own."""
    if not hasattr(model, "load_pretrained"):
        raise BackboneError(f"{path} has the layout of JAX, which timm cannot read for {type(model).__name__}")
    with np.load(path, allow_pickle=False) as archive:
        found = {part for name in archive.files for part in name.split("/") if part.startswith("encoderblock_")}
    if found and len(found) != len(model.blocks):
        raise BackboneError(f"{path} does not fit: it has {len(found)} blocks and the model {len(model.blocks)}")
    try:
        model.load_pretrained(str(path))
    except Exception as error:
        raise BackboneError(f"{path} does not fit {type(model).__name__}: {type(error).__name__}: {error}") from error
