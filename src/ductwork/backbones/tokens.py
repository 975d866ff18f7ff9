"""Where prompts, prefixes and adapters enter a Vision Transformer of timm.

The forward pass of a ViT in four steps, whose composition equals ``backbone(images)`` to the bit::

    tokens = embed(backbone, images)          # [N, T, d]: class token, patches, positions
    tokens = run_blocks(backbone, tokens)     # the transformer blocks, or some of them
    tokens = finish(backbone, tokens)         # the final norm
    features = pool(backbone, tokens)         # [N, d]

Prompts are inserted between the first two (``insert_prompts``); prefixes and adapters are arguments of the second. The
blocks run timm's own code and are never changed: where something must enter, a shallow copy of the block with one part
exchanged takes its place for that one call. Parameters are shared with the original, so gradients go where they
belong, and there is nothing to restore after an exception or to protect from another thread.

"Prefix tokens" are in timm the class token and what stands beside it (DeiT's distillation token, registers); here they
are called special tokens, because a *prefix* is what prefix tuning puts before keys and values.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ductwork.backbones.base import Backbone
from ductwork.errors import BackboneError, ShapeError

Prefix = tuple[Tensor, Tensor]
Adapters = Sequence[nn.Module] | nn.ModuleList | Mapping[int, nn.Module]
Position = Literal["after_cls", "first"]


def require_vit(backbone: Backbone, method_name: str) -> None:
    """Refuse a backbone that ``method_name`` cannot put prompts or adapters into.

    Raises:
        BackboneError: It names the backbone, the reason and what to use instead.
    """
    if backbone.prompt_obstacle is not None:
        raise BackboneError(
            f"{method_name!r} needs a Vision Transformer with a class token, and {backbone.name!r} cannot be used: "
            f"{backbone.prompt_obstacle}; use for instance 'vit-b16-in1k' or 'glyph_vit'"
        )


def embed(backbone: Backbone, images: Tensor) -> Tensor:
    """Tokens ``[N, T, d]`` of ``images [N, 3, H, W]``, ready for the first block."""
    model = backbone.model
    return _tensor(model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(images)))))


def insert_prompts(
    backbone: Backbone,
    tokens: Tensor,
    prompts: Tensor,
    *,
    position: Position = "after_cls",
    cls_pos: bool = False,
) -> Tensor:
    """Put prompts into the sequence.

    Args:
        backbone: Where the tokens come from.
        tokens: ``[N, T, d]`` from ``embed``.
        prompts: ``[N, L, d]``, or ``[1, L, d]`` for the same prompts in every image.
        position: ``after_cls`` gives [class, prompts, patches] as in S-Prompts and the PyTorch ports of L2P (after all
            special tokens, where there are more); ``first`` gives [prompts, class, patches] as in the original L2P.
        cls_pos: Add the position embedding of the class token to each prompt.

    Returns:
        ``[N, T + L, d]``; the prompts are at ``prompt_slice(backbone, L, position)``.
    """
    if prompts.dim() != 3 or len(prompts) not in (1, len(tokens)) or prompts.shape[2] != tokens.shape[2]:
        raise ShapeError(
            f"prompts must be [{len(tokens)} or 1, L, {tokens.shape[2]}] for these tokens, not {list(prompts.shape)}"
        )
    if cls_pos:
        prompts = prompts + _class_position(backbone)
    start = prompt_slice(backbone, prompts.shape[1], position).start
    prompts = prompts.to(tokens.dtype).expand(len(tokens), -1, -1)
    return torch.cat([tokens[:, :start], prompts, tokens[:, start:]], dim=1)


def prompt_slice(backbone: Backbone, length: int, position: Position = "after_cls") -> slice:
    """Where ``length`` inserted prompts stand in the sequence: ``tokens[:, prompt_slice(...)]``."""
    start = {"after_cls": int(backbone.model.num_prefix_tokens), "first": 0}[position]
    return slice(start, start + length)


def run_blocks(
    backbone: Backbone,
    tokens: Tensor,
    *,
    start: int = 0,
    stop: int | None = None,
    prefixes: Mapping[int, Prefix] | None = None,
    adapters: Adapters | None = None,
) -> Tensor:
    """Run the blocks ``start`` to ``stop`` (not included; the last one if left out), in training or evaluation mode.

    Args:
        backbone: Whose blocks.
        tokens: ``[N, T, d]``.
        start: First block, counted from 0.
        stop: Block before which to stop; ``run_blocks(stop=n)`` and then ``run_blocks(start=n)`` is the whole.
        prefixes: Keys and values, each ``[N or 1, L, d]``, by block: every token attends to them besides the tokens.
            The ``d`` numbers are the heads one after the other, and keys are taken as they are (a norm that the model
            has on its own keys is not applied to them).
        adapters: Modules by block, or one for each block of the model. ``adapter(x)`` is added to what the MLP adds to
            ``x``, neither scaled nor dropped with it.

    Raises:
        ShapeError: A prefix or an adapter belongs to no block, or a prefix has another shape.
    """
    blocks = backbone.model.blocks
    prefixes = _by_block(prefixes or {}, len(blocks), "prefixes")
    adapters = _by_block(adapters or {}, len(blocks), "adapters")
    for index in range(len(blocks))[start:stop]:
        step: Callable[[Tensor], Tensor] = blocks[index]
        if index in prefixes:
            _check_prefix(prefixes[index], tokens, index)
            step = _with_prefix(blocks[index], prefixes[index])
        if index in adapters:
            step = partial(_run_with_adapter, step, adapters[index])
        tokens = checkpoint(step, tokens, use_reentrant=False) if _saves_memory(backbone) else step(tokens)
    return tokens


def finish(backbone: Backbone, tokens: Tensor) -> Tensor:
    """The final norm: ``[N, T, d]`` to ``[N, T, d]``."""
    return _tensor(backbone.model.norm(tokens))


def pool(backbone: Backbone, tokens: Tensor, *, skip: int = 0) -> Tensor:
    """Features ``[N, d]`` of finished tokens: the class token (in a distilled DeiT, its mean with the other one).

    Args:
        backbone: Where the tokens come from.
        tokens: ``[N, T, d]`` from ``finish``.
        skip: How many prompts stand before the class token (those inserted with ``position="first"``).
    """
    return _tensor(backbone.model.forward_head(tokens[:, skip:], pre_logits=True))


class Adapter(nn.Module):
    """A bottleneck beside the MLP: ``scale * up(dropout(relu(down(x))))``; it starts as exactly zero.

    Reference: Chen et al., "AdaptFormer: Adapting Vision Transformers for Scalable Visual Recognition", NeurIPS 2022.

    Args:
        dim: Width of the tokens.
        bottleneck: Width between ``down`` and ``up``.
        dropout: Probability in the bottleneck.
        scale: Factor of the output.
    """

    def __init__(self, dim: int, bottleneck: int = 64, *, dropout: float = 0.1, scale: float = 0.1) -> None:
        super().__init__()
        self.down = nn.Linear(dim, bottleneck)
        self.dropout = nn.Dropout(dropout)
        self.up = nn.Linear(bottleneck, dim)
        self.scale = scale
        nn.init.kaiming_uniform_(self.down.weight, a=math.sqrt(5))
        for zero in (self.down.bias, self.up.weight, self.up.bias):
            nn.init.zeros_(zero)

    def forward(self, tokens: Tensor) -> Tensor:
        return _tensor(self.up(self.dropout(F.relu(self.down(tokens))))) * self.scale


def _with_part(module: nn.Module, **parts: Callable[..., Tensor]) -> nn.Module:
    """A shallow copy of ``module`` in whose forward pass ``self.<name>`` is ``parts[name]``.

    Attributes of the instance are found before submodules, so the original and its registered parts stay as they are.
    """
    clone = copy.copy(module)
    vars(clone).update(parts)
    return clone


def _with_prefix(block: Any, prefix: Prefix) -> nn.Module:
    return _with_part(block, attn=partial(_attend, block.attn, prefix))


def _attend(attn: Any, prefix: Prefix, tokens: Tensor, **options: Any) -> Tensor:
    """Attention with ``prefix`` before keys and values, computed by ``attn`` itself.

    timm wants as many queries as keys, so the sequence is made longer by dummies. What they would project to is
    replaced: their keys and values are the prefix, and what their queries find is cut off.
    """
    length = prefix[0].shape[1]

    def project(padded: Tensor) -> Tensor:
        own = attn.qkv(padded[:, length:])
        keys, values = (part.to(own.dtype).expand(len(own), -1, -1) for part in prefix)
        return torch.cat([torch.cat([torch.zeros_like(keys), keys, values], dim=2), own], dim=1)

    def norm_keys(keys: Tensor) -> Tensor:  # [N, heads, L + T, width of a head]
        return torch.cat([keys[:, :, :length], attn.k_norm(keys[:, :, length:])], dim=2)

    parts: dict[str, Callable[..., Tensor]] = {"qkv": project}
    if not isinstance(attn.k_norm, nn.Identity):
        parts["k_norm"] = norm_keys
    padded = F.pad(tokens, (0, 0, length, 0))
    return _tensor(_with_part(attn, **parts)(padded, **options)[:, length:])


def _run_with_adapter(block: Any, adapter: nn.Module, tokens: Tensor) -> Tensor:
    inputs: list[Tensor] = []

    def norm2(between: Tensor) -> Tensor:  # between attention and MLP
        inputs.append(between)
        return _tensor(block.norm2(between))

    output = _with_part(block, norm2=norm2)(tokens)
    return _tensor(output + adapter(inputs[0]))


def _by_block(parts: Any, depth: int, what: str) -> Mapping[int, Any]:
    if not isinstance(parts, Mapping):
        if len(parts) != depth:
            raise ShapeError(f"{what} must be one for each of the {depth} blocks, or by block; there are {len(parts)}")
        return dict(enumerate(parts))
    strangers = sorted(set(parts) - set(range(depth)))
    if strangers:
        raise ShapeError(f"{what} are given for the blocks {strangers}, and the model has blocks 0 to {depth - 1}")
    return parts


def _check_prefix(prefix: Prefix, tokens: Tensor, index: int) -> None:
    keys, values = prefix
    fits = all(
        part.dim() == 3 and len(part) in (1, len(tokens)) and part.shape[2] == tokens.shape[2] for part in prefix
    )
    if not fits or keys.shape[1] != values.shape[1]:
        raise ShapeError(
            f"keys and values for block {index} must both be [{len(tokens)} or 1, L, {tokens.shape[2]}], "
            f"not {list(keys.shape)} and {list(values.shape)}"
        )


def _class_position(backbone: Backbone) -> Tensor:
    """Position embedding of the class token; zero for models (such as DeiT-3) whose class token has none."""
    model = backbone.model
    if model.pos_embed is None or model.no_embed_class:
        return torch.zeros_like(model.cls_token)
    return _tensor(model.pos_embed[:, :1])


def _saves_memory(backbone: Backbone) -> bool:
    return bool(backbone.model.grad_checkpointing) and torch.is_grad_enabled()


def _tensor(value: Any) -> Tensor:
    """Give a type to what comes out of untyped modules."""
    assert isinstance(value, Tensor)
    return value
