"""DualPrompt: prefixes that all domains share in the first layers, and prefixes of each domain in the next ones.

The prefix of domain b is trained with domain b and starts from that of domain b - 1; at test the nearest key decides
whose prefixes an image gets. The defaults are the original's (https://github.com/google-research/l2p, CIFAR-100). A
stream may have more domains than the pool has prefixes: then the pool grows. Keys that no domain has trained yet are
random; public versions let them win all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from ductwork import functional as F
from ductwork.backbones.base import Backbone
from ductwork.methods.base import Recipe, Stage
from ductwork.methods.prompts import PromptConfig, PromptMethod, layers_within, most_frequent, uniform

Layer = Annotated[int, Field(ge=0)]


class DualPromptConfig(PromptConfig):
    """Hyper-parameters of DualPrompt."""

    batch_size: int = Field(24, ge=1, description="images a step, over all devices")
    lr_backbone: float = Field(0.03 * 24 / 256, ge=0, description="learning rate of the prefixes and keys")
    lr_head: float = Field(0.03 * 24 / 256, ge=0, description="learning rate of the classifier rows")
    clip_norm: float | None = Field(1.0, gt=0, description="gradients are clipped to this norm")
    pool: int = Field(10, ge=1, description="prefixes to begin with; one is added for each domain beyond them")
    g_layers: tuple[Layer, ...] = Field(
        (0, 1), description="layers, from 0, with a prefix for all domains; those that do not exist are left out"
    )
    e_layers: tuple[Layer, ...] = Field(
        (2, 3, 4), min_length=1, description="layers with a prefix of the domain; those that do not exist are left out"
    )
    g_length: int = Field(5, ge=1, description="keys and values of a prefix for all domains")
    e_length: int = Field(5, ge=1, description="keys and values of a prefix of a domain")
    lambda_key: float = Field(1.0, ge=0, description="weight of the loss that pulls a domain's key to its queries")
    init_range: float = Field(1.0, gt=0, description="prefixes and keys are drawn between minus this and this")
    untrained_keys_eligible: bool = Field(False, description="keys of domains that never came may win at test")
    batchwise_at_test: bool = Field(False, description="all images of a test batch get the prefix that most pick")

    @model_validator(mode="after")
    def _one_prefix_a_layer(self) -> DualPromptConfig:
        layers = [*self.g_layers, *self.e_layers]
        if len(set(layers)) < len(layers):
            raise ValueError(f"a layer takes one prefix, but g_layers and e_layers name {sorted(layers)}")
        return self


class DualPrompt(PromptMethod):
    """G ``[layers, 2, length, d]`` (keys, values), for each domain an E like it and a key ``[d]``; head on [CLS]."""

    name = "dualprompt"
    summary = "shared and domain-specific key/value prefixes; the nearest key picks the domain's"
    reference = "Wang et al., DualPrompt: Complementary Prompting for Rehearsal-free Continual Learning, ECCV 2022"
    Config = DualPromptConfig
    recipes: ClassVar[Mapping[str, Recipe]] = {
        "default": Recipe("the published settings; each image picks for itself among the keys that were trained"),
        "official": Recipe(
            "as public versions used for comparison: random keys may win, no clipping, one prefix for all images of "
            "a batch at test, so that predictions depend on how the test set is batched",
            {
                "untrained_keys_eligible": True,
                "batchwise_at_test": True,
                "lambda_key": 0.1,
                "clip_norm": None,
                "lr_backbone": 1e-3,
                "lr_head": 1e-3,
            },
        ),
    }
    config: DualPromptConfig

    def __init__(self, config: DualPromptConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.g_layers = layers_within(backbone, config.g_layers, self.name)
        self.e_layers = layers_within(backbone, config.e_layers, self.name)

    def grow(self, stage: Stage) -> None:
        config = self.config
        if stage.number == 1:
            self.add("general", self._draw(len(self.g_layers), 2, config.g_length))
            for _ in range(config.pool):
                self._add_entry()
        newest = len(self.rows.blocks) - 1
        if newest == self._entries():
            self._add_entry()
        if newest > 0:
            self._expert(newest).data.copy_(self._expert(newest - 1))

    def _add_entry(self) -> None:
        number = self._entries()
        self.add(f"expert_{number}", self._draw(len(self.e_layers), 2, self.config.e_length))
        self.add(f"key_{number}", self._draw())

    def _draw(self, *shape: int) -> Tensor:
        return uniform(self.config.init_range, *shape, self.head.width)

    def _entries(self) -> int:
        return sum(name.startswith("key_") for name in self.prompts)

    def _expert(self, number: int) -> nn.Parameter:
        expert: nn.Parameter = self.prompts[f"expert_{number}"]
        return expert

    def trained(self) -> list[nn.Parameter]:
        newest = len(self.rows.blocks) - 1
        return [self.prompts["general"], self._expert(newest), self.prompts[f"key_{newest}"]]

    def choose(self, query: Tensor) -> Tensor:
        """The domain whose prefix each image gets: int64 ``[n]``, or ``[1]`` for all of them."""
        eligible = self._entries() if self.config.untrained_keys_eligible else len(self.rows.blocks)
        keys = torch.stack([self.prompts[f"key_{number}"] for number in range(eligible)])
        ids = F.cosine_logits(query, keys).argmax(1)
        return most_frequent(ids, eligible, 1) if self.config.batchwise_at_test else ids

    def prompted(self, tokens: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
        if self.training:
            newest = len(self.rows.blocks) - 1
            expert = self._expert(newest)[None]
            similarity = F.cosine_logits(query, self.prompts[f"key_{newest}"][None])[:, 0]
            penalty = -self.config.lambda_key * similarity
        else:
            experts = torch.stack([self._expert(number) for number in range(self._entries())])
            expert, penalty = experts[self.choose(query)], query.new_zeros(())
        general = self.prompts["general"]
        prefixes = {layer: (general[None, i, 0], general[None, i, 1]) for i, layer in enumerate(self.g_layers)}
        prefixes |= {layer: (expert[:, i, 0], expert[:, i, 1]) for i, layer in enumerate(self.e_layers)}
        return self.with_prefixes(tokens, prefixes), penalty
