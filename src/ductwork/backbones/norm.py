"""Batch normalisation when backbones are merged.

The running statistics of a network describe its own activations. An average of two networks has other activations,
so averaged statistics are only a guess. Three honest ways out, and each is a function here: leave the statistics out
of the merge (``running_statistics``), never let them move (``set_batch_norm``), or measure them anew (``recalibrate``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ductwork.errors import DataError

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def running_statistics(module: nn.Module) -> frozenset[str]:
    """Keys of ``module.state_dict()`` that hold statistics of batch normalisation and not something learned."""
    layers = ((path, layer) for path, layer in module.named_modules() if isinstance(layer, _BatchNorm))
    return frozenset(
        f"{path}.{name}" if path else name
        for path, layer in layers
        for name in _STATISTICS
        if getattr(layer, name) is not None
    )


def set_batch_norm(module: nn.Module, frozen: bool) -> None:
    """Freeze the running statistics of ``module``, or let them follow its mode again.

    ``module.train()`` unfreezes every layer, so call this after it. Only the statistics stand still: scale and shift
    are parameters and are trained or not as ``requires_grad`` says.
    """
    for layer in _batch_norms(module):
        layer.train(module.training and not frozen)


@torch.no_grad()
def recalibrate(module: nn.Module, batches: Iterable[torch.Tensor]) -> None:
    """Measure the running statistics anew in one pass over ``batches``.

    Every image counts the same: the statistics become the average over the batches, weighted by their sizes, whatever
    the momentum of the layers. Only batch normalisation runs in training mode meanwhile (no dropout), weights are not
    touched, and modes and momenta are afterwards what they were.

    Args:
        module: The network; it is called with each batch.
        batches: Images ``[N, 3, H, W]`` on the device of ``module``. Each batch should hold at least two images.

    Raises:
        DataError: There are no batches; the statistics are then still the old ones.
    """
    layers = _batch_norms(module)
    if not layers:
        return
    iterator = iter(batches)
    first = next(iterator, None)
    if first is None:
        raise DataError("batch normalisation cannot be recalibrated without images: there was no batch")
    with _measuring(module, layers):
        seen = 0
        for batch in chain([first], iterator):
            seen += len(batch)
            for layer in layers:
                layer.momentum = len(batch) / seen
            module(batch)


@contextmanager
def _measuring(module: nn.Module, layers: list[_BatchNorm]) -> Iterator[None]:
    modes = {child: child.training for child in module.modules()}
    momenta = {layer: layer.momentum for layer in layers}
    try:
        module.eval()
        for layer in layers:
            layer.reset_running_stats()
            layer.training = True  # not .train(): timm's layers hold activations and dropout as children
        yield
    finally:
        for child, mode in modes.items():
            child.training = mode
        for layer, momentum in momenta.items():
            layer.momentum = momentum


def _batch_norms(module: nn.Module) -> list[_BatchNorm]:
    return [layer for layer in module.modules() if isinstance(layer, _BatchNorm) and layer.track_running_stats]
