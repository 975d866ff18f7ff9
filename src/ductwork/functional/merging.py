"""Task vectors and the consolidation of backbones (Eq. 4 and Eq. 7).

A state is a mapping of names to tensors, as ``Module.state_dict()`` gives it. Everything is done tensor by
tensor: no flattened copy of a model is ever made, and the extra memory is that of one tensor.
Only floating-point tensors take part; counters and masks are never merged.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from ductwork.errors import ShapeError

__all__ = [
    "add_to_sketch",
    "consolidate",
    "is_running_statistic",
    "length_and_sketch",
    "merge_all",
    "task_vector",
    "task_vector_cosine",
    "task_vector_norm",
]

State = Mapping[str, Tensor]
Keys = Collection[str] | Callable[[str], bool] | None


def is_running_statistic(key: str) -> bool:
    """Whether a key is a buffer of batch normalisation.

    Running statistics are not weights: sums of their changes over domains are no statistics of anything, and
    a variance may come out negative. ``keys=lambda key: not is_running_statistic(key)`` leaves them as they are.
    """
    return key.rpartition(".")[2] in ("running_mean", "running_var", "num_batches_tracked")


@torch.no_grad()
def task_vector(fine_tuned: State, base: State, *, keys: Keys = None) -> dict[str, Tensor]:
    """``delta_i = phi_i - phi_0`` (above Eq. 4).

    Args:
        fine_tuned: the state of the domain expert.
        base: the pre-trained state.
        keys: which keys take part, as names or as a predicate; all by default.

    Returns:
        One tensor for each floating-point key, in float32 or better: half precision would lose the
        difference of two nearly equal weights.
    """
    return {
        key: _widened(fine_tuned[key], base[key].device) - _widened(base[key])
        for key in _matching_keys({"fine_tuned": fine_tuned, "base": base}, keys)
    }


@torch.no_grad()
def consolidate(
    merged: State,
    fine_tuned: State,
    base: State,
    weight: float,
    *,
    keys: Keys = None,
) -> None:
    """``phi^m_i = phi^m_{i-1} + weight (phi_i - phi_0)``, in place: Eq. 4 and Eq. 7 made incrementally.

    With ``weight = alpha_phi`` this is Eq. 4, with ``weight = alpha_phi * Sim_{0,i}`` it is Eq. 7.
    Everything is checked before the first tensor is changed, so a failed call leaves ``merged`` whole.

    Args:
        merged: the state to change; begin with a clone of ``base``. The tensors themselves are changed, so the
            ``state_dict()`` of a live model changes the model.
        fine_tuned: the state of the domain expert, on any device.
        base: the pre-trained state, on any device.
        weight: the factor of the task vector.
        keys: which keys take part, as names or as a predicate; all by default.

    Raises:
        ShapeError: keys, shapes or types differ, the error names the key; or ``merged`` shares memory with
            ``base``, which this call would destroy.
    """
    if not math.isfinite(weight):
        raise ShapeError(f"the weight of a task vector must be a finite number, got {weight}")
    chosen = _matching_keys({"merged": merged, "fine_tuned": fine_tuned, "base": base}, keys)
    for key in chosen:
        if _memory(merged[key]) == _memory(base[key]):
            raise ShapeError(f"merged and base share the memory of {key!r}: start from clones of the base tensors")
    done: set[tuple[object, ...]] = set()
    for key in chosen:
        target = merged[key]
        if _memory(target) in done:  # tied weights: two names, one tensor, one change
            continue
        done.add(_memory(target))
        delta = _widened(fine_tuned[key], target.device) - _widened(base[key], target.device)
        if target.dtype == delta.dtype:
            target.add_(delta, alpha=weight)
        else:
            target.copy_(delta.mul_(weight).add_(target))


@torch.no_grad()
def merge_all(base: State, vectors: Sequence[State], weights: Sequence[float]) -> dict[str, Tensor]:
    """``phi_0 + sum_k weights_k delta_k``, the closed form of Eq. 4 and Eq. 7, in float64.

    A reference for :func:`consolidate`, and the way to leave a domain out again when its task vector was kept.

    Returns:
        A new state in the types of ``base``; keys that no vector has are copied.
    """
    if len(vectors) != len(weights):
        raise ShapeError(f"{len(vectors)} task vectors but {len(weights)} weights")
    merged = {}
    for key, value in base.items():
        total = value.double() if value.is_floating_point() else value
        for vector, weight in zip(vectors, weights, strict=True):
            if key in vector:
                _check_fit(key, value, vector[key], "base", "a task vector", types=False)
                total = total + weight * vector[key].to(total.device, torch.float64)
        merged[key] = total.to(value.dtype) if total is not value else value.clone()
    unknown = {key for vector in vectors for key in vector} - set(base)
    if unknown:
        raise ShapeError(f"task vectors have keys that the base lacks: {_some(unknown)}")
    return merged


def task_vector_norm(vector: State) -> float:
    """Euclidean length of a task vector, accumulated key by key in float64."""
    return math.sqrt(_inner(vector, vector))


def task_vector_cosine(a: State, b: State) -> float:
    """Cosine of two task vectors, key by key in float64; 0 if one of them is zero.

    The paper's premise (below Eq. 4) is that task vectors of different domains are nearly orthogonal.
    """
    lengths = task_vector_norm(a) * task_vector_norm(b)
    return _inner(a, b) / lengths if lengths > 0 else 0.0


@torch.no_grad()
def add_to_sketch(sketch: Tensor, vector: State) -> None:
    """Fold a task vector, or a few keys of one, into a sketch ``[s]`` of fixed size, in place.

    Every entry of a key is added with a random sign to a random place; both are drawn from the key's name alone, so
    sketches of different domains fit together (a count sketch). The cosine of two sketches is an unbiased estimate of
    that of the task vectors with a deviation of about ``1 / sqrt(s)``, and takes kilobytes where the vectors
    themselves take as much as the backbone, once for every domain ever learned.
    """
    size = len(sketch)
    for key in _matching_keys({"vector": vector}, None):
        values = vector[key].detach().to("cpu", sketch.dtype).flatten()
        seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:7], "big")
        drawn = torch.randint(2 * size, values.shape, generator=torch.Generator().manual_seed(seed))
        sketch.index_add_(0, drawn // 2, torch.where(drawn % 2 == 0, values, -values))


def length_and_sketch(tuned: State, base: State, size: int, *, keys: Keys = None) -> tuple[float, Tensor]:
    """Length of the task vector from ``base`` to ``tuned``, and its sketch ``[size]``.

    It is made key by key: the whole task vector never exists.
    """
    lengths, sketch = [], torch.zeros(size, dtype=torch.float64)
    for key in _matching_keys({"tuned": tuned, "base": base}, keys):
        change = task_vector(tuned, base, keys=[key])
        lengths.append(task_vector_norm(change))
        add_to_sketch(sketch, change)
    return math.hypot(*lengths), sketch


@torch.no_grad()
def _inner(a: State, b: State) -> float:
    keys = _matching_keys({"a": a, "b": b}, None)
    return math.fsum(float((a[key].double() * b[key].to(a[key].device, torch.float64)).sum()) for key in keys)


def _matching_keys(states: Mapping[str, State], keys: Keys) -> list[str]:
    """Floating-point keys that take part, after checking that all states agree on them."""
    (first_name, first), *others = states.items()
    names = list(_selected(first, keys))
    if not callable(keys) and keys is not None and set(keys) - set(first):
        raise ShapeError(f"{first_name} lacks {_some(set(keys) - set(first))}")
    for name, state in others:
        selected = set(_selected(state, keys))
        if set(names) != selected:
            here, there = set(names) - selected, selected - set(names)
            parts = [f"{name} lacks {_some(here)}"] * bool(here) + [f"{first_name} lacks {_some(there)}"] * bool(there)
            raise ShapeError("states do not have the same keys: " + "; ".join(parts))
        for key in names:
            _check_fit(key, first[key], state[key], first_name, name)
    return [key for key in names if first[key].is_floating_point()]


def _selected(state: State, keys: Keys) -> Iterator[str]:
    if keys is None:
        return iter(state)
    if callable(keys):
        return filter(keys, state)
    wanted = frozenset(keys)
    return (key for key in state if key in wanted)


def _check_fit(key: str, a: Tensor, b: Tensor, a_name: str, b_name: str, *, types: bool = True) -> None:
    if a.shape != b.shape:
        raise ShapeError(f"{key!r} is {list(a.shape)} in {a_name} but {list(b.shape)} in {b_name}")
    if types and a.dtype != b.dtype:
        raise ShapeError(f"{key!r} is {a.dtype} in {a_name} but {b.dtype} in {b_name}")


def _widened(tensor: Tensor, device: torch.device | None = None) -> Tensor:
    """In float32 or better, on ``device``; the tensor itself if it is so already."""
    return tensor.to(device or tensor.device, torch.promote_types(tensor.dtype, torch.float32))


def _memory(tensor: Tensor) -> tuple[object, ...]:
    """What two names of one tensor have in common; empty and meta tensors share nothing."""
    address = tensor.data_ptr() if tensor.numel() and tensor.device.type != "meta" else id(tensor)
    return tensor.device, address, tensor.shape, tensor.stride()


def _some(names: set[str]) -> str:
    shown = sorted(names)[:3]
    return ", ".join(map(repr, shown)) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
