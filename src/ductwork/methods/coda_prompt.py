"""CODA-Prompt: prefixes are weighted sums of components, and each domain adds components to those before it.

The weight of a component is the cosine of its key with the query seen through its attention vector; nothing is
selected, so the choice is learned with the classification loss. Old components take part but stand still. The public
code (https://github.com/GT-RIPL/CODA-Prompt) divides 100 components by the number of domains. A living stream has no
such number, so each domain adds ``components_per_domain``; on the known benchmarks the recipes have its values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ductwork.backbones.base import Backbone
from ductwork.errors import ConfigError
from ductwork.methods.base import Recipe, Stage
from ductwork.methods.prompts import PromptConfig, PromptMethod, layers_within

_KINDS = ("prompt", "key", "attention")
_SMALLEST = 1e-12  # lengths below this count as this one, as in torch


class CodaPromptConfig(PromptConfig):
    """Hyper-parameters of CODA-Prompt."""

    epochs: int = Field(20, ge=0, description="passes over the domain's training images")
    batch_size: int = Field(128, ge=1, description="images a step, over all devices")
    schedule: Literal["constant", "cosine", "cosine-coda", "step-up"] = Field(
        "cosine-coda", description="learning rate over time; cosine-coda: a cosine that ends at 1.6 % in the last epoch"
    )
    drop_last: bool = Field(True, description="leave out an incomplete last batch, unless it is the only one")
    components_per_domain: int = Field(20, ge=1, description="components that each domain adds")
    length: int = Field(8, ge=2, multiple_of=2, description="rows of a component: one half keys, the other half values")
    layers: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (0, 1, 2, 3, 4), min_length=1, description="layers, from 0, with prefixes; those that do not exist are left out"
    )
    ortho_penalty: float = Field(0.0, ge=0, description="weight mu of the loss that keeps components orthogonal")
    init: Literal["complement", "gram-schmidt"] = Field(
        "complement",
        description="new components: orthonormal and orthogonal to the old ones, or classical Gram-Schmidt, which "
        "takes the old ones for orthogonal after training, too",
    )


_STREAMS = {
    "office-home": {"components_per_domain": 25},
    "domainnet": {"components_per_domain": 16, "epochs": 5},
    "core50": {"components_per_domain": 12},
    "cddb-hard": {"components_per_domain": 20},
    "domainnet-cil": {"components_per_domain": 20, "epochs": 5},
    "domainnet-cil-shifting": {"components_per_domain": 20, "epochs": 5},
}


class CodaPrompt(PromptMethod):
    """For each domain and layer: prompts ``[m, length, d]``, keys and attention vectors ``[m, d]``; head on [CLS]."""

    name = "coda-prompt"
    summary = "prefixes as attention-weighted sums of components; each domain adds orthogonal ones"
    reference = "Smith et al., CODA-Prompt: COntinual Decomposed Attention-based Prompting, CVPR 2023"
    Config = CodaPromptConfig
    recipes: ClassVar[Mapping[str, Recipe]] = {
        "default": Recipe("the published settings; new components are orthogonal to all old ones", {}, _STREAMS),
        "official": Recipe(
            "the released code: Gram-Schmidt against old components as if they were still orthogonal",
            {"init": "gram-schmidt"},
            _STREAMS,
        ),
    }
    config: CodaPromptConfig

    def __init__(self, config: CodaPromptConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.layers = layers_within(backbone, config.layers, self.name)
        self.drop_last = config.drop_last
        if config.components_per_domain > self.head.width:
            raise ConfigError(
                f"components_per_domain = {config.components_per_domain}, but no more than {self.head.width} vectors "
                f"can be orthogonal in the features of {backbone.name!r}"
            )

    def grow(self, stage: Stage) -> None:
        config, width, newest = self.config, self.head.width, len(self.rows.blocks) - 1
        count = config.components_per_domain
        if (newest + 1) * count > width:
            stage.warn(f"{(newest + 1) * count} components in {width} dimensions cannot all be orthogonal")
        draw = orthonormal_complement if config.init == "complement" else gram_schmidt
        for kind in _KINDS:
            shape = (config.length, width) if kind == "prompt" else (width,)
            old = torch.empty(len(self.layers), 0, *shape)
            if newest:
                old = torch.cat([self.prompts[f"{kind}_{b}"].detach().cpu() for b in range(newest)], dim=1)
            fresh = [draw(rows, count).reshape(count, *shape) for rows in old.flatten(2)]
            self.add(f"{kind}_{newest}", torch.stack(fresh))

    def trained(self) -> list[nn.Parameter]:
        return [self.prompts[f"{kind}_{len(self.rows.blocks) - 1}"] for kind in _KINDS]

    def components(self, kind: str) -> Tensor:
        """All components ``[layers, K, ...]``, of which those of the newest domain are trained."""
        return torch.cat([self.prompts[f"{kind}_{b}"] for b in range(len(self.rows.blocks))], dim=1)

    def prompted(self, tokens: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
        prompts, keys, attention = (self.components(kind) for kind in _KINDS)
        half = self.config.length // 2
        with torch.autocast(query.device.type, enabled=False):
            weights = component_weights(query, keys, attention)
            mixed = weights @ prompts.flatten(2)  # [layers, n, length * d]
            mixed = mixed.reshape(*mixed.shape[:2], *prompts.shape[2:])
        prefixes = {layer: (mixed[i, :, :half], mixed[i, :, half:]) for i, layer in enumerate(self.layers)}
        penalty = query.new_zeros(())
        if self.training and self.config.ortho_penalty:
            penalty = self.config.ortho_penalty * sum(
                (distance_from_orthonormal(rows) for rows in (keys, attention, prompts.flatten(2))), penalty
            )
        return self.with_prefixes(tokens, prefixes), penalty


def component_weights(query: Tensor, keys: Tensor, attention: Tensor) -> Tensor:
    """``cos(q * A_k, K_k)`` for queries ``[n, d]`` and components ``[..., K, d]``: ``[..., n, K]``.

    As two matrix products: what is inside the cosine, n x K vectors for each layer, never exists.
    """
    products = query @ (attention * nn.functional.normalize(keys, dim=-1)).mT
    lengths = (query.square() @ attention.square().mT).sqrt()
    return products / lengths.clamp_min(_SMALLEST)


def distance_from_orthonormal(rows: Tensor) -> Tensor:
    """Mean squared difference of the Gram matrix from the identity, summed over layers; rows are ``[layers, K, d]``."""
    difference = rows @ rows.mT - torch.eye(rows.shape[1], device=rows.device)
    return difference.square().mean((1, 2)).sum()


def orthonormal_complement(old: Tensor, count: int) -> Tensor:
    """``count`` random orthonormal rows, orthogonal to the span of ``old [s, d]`` as long as there is room for them."""
    fresh = torch.randn(old.shape[1], count, dtype=torch.float64)
    if len(old) and len(old) + count <= old.shape[1]:
        basis = torch.linalg.qr(old.double().T).Q
        for _ in range(2):  # the second time removes what rounding left over
            fresh = fresh - basis @ (basis.T @ fresh)
    rows: Tensor = torch.linalg.qr(fresh).Q
    return rows.T.float()


def gram_schmidt(old: Tensor, count: int) -> Tensor:
    """Classical Gram-Schmidt in single precision: random rows minus their projections on each row before."""
    rows = old
    for _ in range(count):
        draw = torch.randn(old.shape[1])
        shares = (rows @ draw) / rows.square().sum(1).clamp_min(_SMALLEST)
        rows = torch.cat([rows, (draw - shares @ rows)[None]])
    return nn.functional.normalize(rows[len(old) :], dim=1)
