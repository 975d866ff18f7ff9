"""Layers that look at, or draw for, a whole batch, when this process has a slice of it.

Dropout draws for all images of the batch and takes the slice's part, so the mask of an image does not depend on how
many processes there are. Batch normalisation computes the statistics of all slices together. Everything else in a
network works on one image at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from ductwork.data.slices import Slice, bounds, working_on
from ductwork.engine.ranks import Ranks


@contextmanager
def whole_batch(ranks: Ranks, inputs: Tensor, total: int, *, layers: bool = False) -> Iterator[Tensor]:
    """Compute meanwhile as if this rank's images stood in their batch of ``total``; gives what to compute on.

    That is ``inputs``, or where this rank has none, a grey image that counts nowhere: few networks take an empty batch.
    ``layers`` says whether there are layers to care for; methods may ask ``data.slices`` in any case.
    """
    start, size = bounds(total, ranks.rank, ranks.world)
    add = _itself if ranks.world == 1 else _sum if size else _sum_of_others
    piece = Slice(min(start, total - 1), max(1, size), total, add)
    with working_on(piece), _WholeBatch(piece) if layers else nullcontext():
        yield inputs if size else inputs.new_zeros(1, *inputs.shape[1:])


def looks_around(model: nn.Module, *, alone: bool) -> bool:
    """Whether a layer that is in training mode draws, or normalises what other ranks have a part of."""
    return any(
        module.training
        and (
            (isinstance(module, _BatchNorm) and not alone)
            or bool(getattr(module, "drop_prob", 0))
            or (isinstance(module, nn.Dropout) and module.p > 0)
        )
        for module in model.modules()
    )


class _WholeBatch(TorchFunctionMode):
    """Replaces the functions behind those layers, whatever class of whatever library calls them."""

    def __init__(self, piece: Slice) -> None:
        super().__init__()
        self._piece = piece

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        piece, options = self._piece, dict(kwargs or {})
        if function is nn.functional.dropout and len(args[0]) == piece.size:
            return _dropout(piece, *args, **options)
        if function is Tensor.bernoulli_ and len(args[0]) == piece.size:  # stochastic depth in timm
            return args[0].copy_(_drawn(piece, args[0], *args[1:], **options))
        if function is nn.functional.batch_norm:
            return _batch_norm(piece, *args, **options)
        return function(*args, **options)


def _drawn(piece: Slice, like: Tensor, p: float) -> Tensor:
    """This slice's part of zeros and ones for the whole batch, ones with probability ``p``."""
    everybody = torch.empty(piece.total, *like.shape[1:], dtype=like.dtype, device=like.device).bernoulli_(p)
    return everybody[piece.start : piece.start + piece.size]


def _dropout(piece: Slice, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if not training or p in (0.0, 1.0):
        return nn.functional.dropout(input, p, training)
    return input * _drawn(piece, input, 1 - p) / (1 - p)


def _batch_norm(
    piece: Slice,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if not training or piece.add is _itself:
        return nn.functional.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    others = [0, *range(2, input.ndim)]
    shape = [1, -1] + [1] * (input.ndim - 2)
    count = piece.total * input.shape[2:].numel()
    values = input.float()
    mean = piece.add(values.sum(others)) / count
    centred = values - mean.reshape(shape)
    variance = piece.add(centred.square().sum(others)) / count
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_((variance * (count / max(1, count - 1))).to(running_var.dtype), momentum)
    result = centred * torch.rsqrt(variance + eps).reshape(shape)
    if weight is not None and bias is not None:
        result = result * weight.reshape(shape) + bias.reshape(shape)
    return result.to(input.dtype)


class _Sum(torch.autograd.Function):
    """The sum over all ranks, whose gradient is the sum of the gradients."""

    @staticmethod
    def forward(context: Any, tensor: Tensor) -> Tensor:
        total = tensor.detach().clone().contiguous()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        total = gradient.detach().clone().contiguous()
        dist.all_reduce(total)
        return total


def _sum(tensor: Tensor) -> Tensor:
    result: Tensor = _Sum.apply(tensor)
    return result


def _sum_of_others(tensor: Tensor) -> Tensor:
    return _sum(tensor * 0)


def _itself(tensor: Tensor) -> Tensor:
    return tensor
