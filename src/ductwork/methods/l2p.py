"""L2P: a pool of prompts that all domains share; each image picks the few whose keys are nearest to it.

Sources differ, and the defaults are those of the PyTorch port (https://github.com/JH-LEE-KR/l2p-pytorch): prompts stand
between class token and patches and carry the class token's position, top 5 of 10, weight 0.1 of the keys' loss, and
gradients clipped to norm 1 as in the original. Two things are common to all public versions and not the default here.
At test they use one choice of prompts for the whole batch, so that a prediction depends on the other images of its
batch; and the original's domain-incremental setting trains the whole backbone under one shared head, where we freeze
the backbone and add a block of rows for each domain, as the paper describes its baselines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from ductwork import functional as F
from ductwork.backbones.tokens import finish, insert_prompts, prompt_slice, run_blocks
from ductwork.methods.base import Recipe, Stage
from ductwork.methods.prompts import PromptConfig, PromptMethod, most_frequent, uniform


class L2PConfig(PromptConfig):
    """Hyper-parameters of L2P."""

    lr_backbone: float = Field(1.875e-3, ge=0, description="learning rate of the prompts and keys: 0.03 x 16 / 256")
    lr_head: float = Field(1.875e-3, ge=0, description="learning rate of the classifier rows")
    clip_norm: float | None = Field(1.0, gt=0, description="gradients are clipped to this norm")
    pool: int = Field(10, ge=1, description="prompts in the pool")
    length: int = Field(5, ge=1, description="tokens of a prompt")
    top_k: int = Field(5, ge=1, description="prompts that an image picks")
    lambda_key: float = Field(0.1, ge=0, description="weight of the loss that pulls picked keys towards the queries")
    init_range: float = Field(1.0, gt=0, description="prompts and keys are drawn between minus this and this")
    layout: Literal["after_cls", "first"] = Field(
        "after_cls", description="[class, prompts, patches], prompts with the class token's position, or [prompts, ...]"
    )
    batchwise: Literal["never", "train", "always"] = Field(
        "train", description="when all images of a batch use the prompts that are picked most often in it"
    )

    @model_validator(mode="after")
    def _enough_prompts(self) -> L2PConfig:
        if self.top_k > self.pool:
            raise ValueError(f"top_k = {self.top_k} is more than the {self.pool} prompts of the pool")
        return self


class L2P(PromptMethod):
    """Prompts ``[pool, length, d]``, keys ``[pool, d]``, and a head on the mean of the prompts' outputs."""

    name = "l2p"
    summary = "picks prompts from a shared pool by the nearest keys; the backbone is frozen"
    reference = "Wang et al., Learning to Prompt for Continual Learning, CVPR 2022"
    Config = L2PConfig
    recipes: ClassVar[Mapping[str, Recipe]] = {
        "default": Recipe(
            "the published settings; at test each image picks for itself; on the demo prompts are drawn shorter",
            # There an image has 17 tokens: 25 prompts as long as they are would drown them.
            streams={"demo": {"init_range": 0.2}},
        ),
        "official": Recipe(
            "as public versions used for comparison: no clipping, and one choice for all images of a batch at test, so "
            "that predictions depend on how the test set is batched",
            {"batchwise": "always", "clip_norm": None},
        ),
        "jax": Recipe(
            "the original's layout, top 4 and weight of the keys' loss; predictions depend on the batch as well",
            {"layout": "first", "top_k": 4, "lambda_key": 1.0, "batchwise": "always"},
        ),
    }
    config: L2PConfig

    def grow(self, stage: Stage) -> None:
        config, width = self.config, self.head.width
        if stage.number == 1:
            self.add("prompt", uniform(config.init_range, config.pool, config.length, width))
            self.add("key", uniform(config.init_range, config.pool, width))

    def trained(self) -> list[nn.Parameter]:
        return [self.prompts["prompt"], self.prompts["key"]]

    def select(self, similarity: Tensor) -> Tensor:
        """Which prompts each image gets, from its similarity to the keys ``[n, pool]``: int64 ``[n, top_k]``."""
        config = self.config
        ids = similarity.topk(config.top_k, dim=1).indices
        if config.batchwise == "always" or (config.batchwise == "train" and self.training):
            ids = most_frequent(ids, config.pool, config.top_k).expand(len(ids), -1)
        return ids

    def prompted(self, tokens: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
        layout = self.config.layout
        similarity = F.cosine_logits(query, self.prompts["key"])
        ids = self.select(similarity)
        prompts = self.prompts["prompt"][ids].flatten(1, 2)
        tokens = insert_prompts(self.backbone, tokens, prompts, position=layout, cls_pos=layout == "after_cls")
        tokens = finish(self.backbone, run_blocks(self.backbone, tokens))
        features = tokens[:, prompt_slice(self.backbone, prompts.shape[1], layout)].mean(1)
        # a mask, because the gradient of gathering is summed in no fixed order on a GPU
        picked = torch.zeros_like(similarity).scatter(1, ids, 1.0)
        return features, -self.config.lambda_key * (similarity * picked).sum(1)
