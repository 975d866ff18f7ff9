"""EASE: one set of adapters for each domain, and prototypes in all of their subspaces (Zhou et al., CVPR 2024).

Where to find the paper: training of a subspace Eq. 5 ``_adapt``, prototypes Eq. 6 and their completion Eq. 8 to 10
``_prototypes``, the weighted ensemble of subspaces Eq. 11 ``forward``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ductwork import functional as F
from ductwork.backbones import tokens as T
from ductwork.backbones.base import Backbone
from ductwork.methods.base import Group, Method, Parts, Phase, Price, Recipe, Stage, TrainingConfig
from ductwork.methods.heads import BlockClassifier, CosineHead


class EaseConfig(TrainingConfig):
    """Hyper-parameters of EASE."""

    epochs: int = Field(20, ge=0, description="passes over the domain's training images")
    batch_size: int = Field(48, ge=1, description="images a step, over all devices")
    lr_backbone: float = Field(0.025, ge=0, description="learning rate of the adapters")
    lr_head: float = Field(0.025, ge=0, description="learning rate of the throw-away classifier")
    schedule: Literal["constant", "cosine", "step-up"] = Field("cosine", description="learning rate over time")
    bottleneck: int = Field(64, ge=1, description="width of an adapter between its two layers")
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout in the bottleneck while a set is trained")
    adapter_scale: float = Field(0.1, gt=0, description="factor of an adapter's output")
    alpha: float = Field(0.1, ge=0, description="weight of all subspaces of other domains together, one's own being 1")
    beta: float = Field(0.0, ge=0, description="weight of the pre-trained space; above 0 it costs one more pass")
    temperature: float = Field(1.0, gt=0, description="softmax temperature of the completion; near 0 one row decides")


class AdaptedBackbone(nn.Module):
    """Features of a frozen backbone with one set of adapters: ``[N, 3, H, W]`` to ``[N, d]``."""

    def __init__(self, backbone: Backbone, adapters: nn.ModuleList) -> None:
        super().__init__()
        self.backbone, self.adapters = backbone, adapters

    @staticmethod
    def new_adapters(backbone: Backbone, bottleneck: int, dropout: float, scale: float) -> nn.ModuleList:
        """One adapter for each block. They start as exactly zero, so that the features start as the backbone's."""
        width, depth = backbone.num_features, len(backbone.model.blocks)
        return nn.ModuleList(T.Adapter(width, bottleneck, dropout=dropout, scale=scale) for _ in range(depth))

    def forward(self, images: Tensor) -> Tensor:
        return self.from_tokens(T.embed(self.backbone, images))

    def from_tokens(self, tokens: Tensor) -> Tensor:
        """The same from embedded tokens, which all sets of adapters share."""
        tokens = T.run_blocks(self.backbone, tokens, adapters=self.adapters)
        return T.pool(self.backbone, T.finish(self.backbone, tokens))


class Ease(Method):
    """The backbone never changes. Carried: one set of adapters a domain, and a prototype of each row in each subspace.

    Rows are measured in the subspaces that exist when their domain comes. Later subspaces are completed: an old row is
    described there by the new rows that it resembles in its own. ``prototypes`` is ``[R, S * d]`` with ``S`` subspaces,
    one for each domain, after the pre-trained one where ``beta`` is above 0.
    """

    name = "ease"
    summary = "one set of adapters for each domain; old prototypes are completed in new subspaces"
    reference = "Zhou et al., Expandable Subspace Ensemble for Pre-Trained Model-Based CIL, CVPR 2024"
    Config = EaseConfig
    recipes: ClassVar[Mapping[str, Recipe]] = {
        "default": Recipe(
            "the published settings; on the demo ten times the learning rate",
            # There a domain has a fifth of the steps that the rate is made for, and adapters would hardly leave zero.
            streams={"demo": {"lr_backbone": 0.25, "lr_head": 0.25}},
        ),
        "imagenet-r": Recipe(
            "the published settings for ImageNet-R, whose images vary more",
            {"lr_backbone": 0.05, "lr_head": 0.05, "batch_size": 16, "weight_decay": 5e-3},
        ),
    }
    constant_parts = frozenset({"backbone"})

    def __init__(self, config: EaseConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.config = config
        # A ModuleList of ModuleLists: a plain list would be left out of the state, the device and the price.
        self.adapters = nn.ModuleList()
        self.prototypes = nn.Parameter(torch.empty(0, 0))
        self.requires_grad_(False)

    @classmethod
    def check(cls, backbone: Backbone) -> None:
        T.require_vit(backbone, cls.name)

    def phases(self) -> Sequence[Phase]:
        return [Phase("adapt", self._adapt), Phase("prototypes", self._prototypes)]

    def _adapt(self, stage: Stage) -> None:
        """Train a new set of adapters with a classifier that is thrown away."""
        config = self.config
        block = self.rows.add(stage.domain.name, stage.domain.classes)
        self.adapters.append(self._new_adapters().to(stage.device))
        subspace = self._subspaces()[-1]
        proxy = CosineHead(self.backbone.num_features).to(stage.device)
        rows = proxy.add_block(CosineHead.random_rows(len(block), proxy.width))
        groups = [
            Group("adapters", list(subspace.adapters.parameters()), config.lr_backbone),
            Group("head", [rows, proxy.scale], config.lr_head),
        ]
        stage.train(BlockClassifier(subspace, proxy), stage.augmented(config.batch_size), groups, config)
        self.requires_grad_(False)

    def _prototypes(self, stage: Stage) -> None:
        """Measure the new rows in every subspace, one pass each, and complete the old rows in the new one."""
        spaces = [*([self.backbone] if self._initial else []), *self._subspaces()]
        new = torch.stack([stage.centers(space) for space in spaces], dim=1)
        rows, width = len(self.rows), self.backbone.num_features
        everything = new.new_zeros(rows, len(spaces), width)
        everything[rows - len(new) :] = new
        if len(self.adapters) > 1:
            everything[: rows - len(new), :-1] = self._by_subspace().to(new.device)
        # Everything that was not measured is completed anew: rows that came since take part in older subspaces, too.
        own = everything[:, self._initial :]
        everything[:, self._initial :] = F.complete_prototypes(
            own, self.rows.row_block(), temperature=self.config.temperature
        )
        self.prototypes = nn.Parameter(everything.flatten(1), requires_grad=False)

    def _by_subspace(self) -> Tensor:
        """The prototypes as ``[R, S, d]``."""
        return self.prototypes.reshape(len(self.prototypes), -1, self.backbone.num_features)

    @property
    def _initial(self) -> int:
        """How many subspaces come before the first domain's."""
        return int(self.config.beta > 0)

    def _new_adapters(self) -> nn.ModuleList:
        config = self.config
        return AdaptedBackbone.new_adapters(self.backbone, config.bottleneck, config.dropout, config.adapter_scale)

    def _subspaces(self) -> list[AdaptedBackbone]:
        return [AdaptedBackbone(self.backbone, adapters) for adapters in self.adapters]  # type: ignore[arg-type]

    def weights(self) -> Tensor:
        """What each row gives to each subspace ``[R, S]``: 1 to its own, alpha shared by the others, beta to phi_0."""
        blocks = self.rows.row_block()
        count = len(self.rows.blocks)
        # with a single domain there is no other subspace, so the maximum only avoids the division by zero
        weights = torch.full((len(blocks), count), self.config.alpha / max(1, count - 1))
        weights[torch.arange(len(blocks)), blocks] = 1.0
        return torch.cat([torch.full((len(blocks), self._initial), self.config.beta), weights], dim=1)

    def features(self, images: Tensor) -> Tensor:
        return torch.cat(self._by_adapters(images), dim=1)

    def _by_adapters(self, images: Tensor) -> list[Tensor]:
        """Features ``[n, d]`` in each subspace."""
        tokens = T.embed(self.backbone, images)
        features = [subspace.from_tokens(tokens) for subspace in self._subspaces()]
        if self._initial:
            features.insert(0, T.pool(self.backbone, T.finish(self.backbone, T.run_blocks(self.backbone, tokens))))
        return features

    def forward(self, images: Tensor) -> Tensor:
        features = self._by_adapters(images)
        prototypes = self._by_subspace()
        weights = self.weights().to(prototypes.device)
        # subspace by subspace: [n, R] numbers at a time
        scores: Tensor = prototypes.new_zeros(len(images), len(prototypes))
        for space, found in enumerate(features):
            scores += weights[:, space] * F.cosine_logits(found, prototypes[:, space])
        return scores

    def price(self) -> Price:
        # every stage trains one set of adapters; the classifier that helps it is thrown away
        adapters = self.adapters[-1] if len(self.adapters) else self._new_adapters()
        trainable = sum(p.numel() for p in adapters.parameters())
        return Price(super().price().parameters, trainable, float(max(1, len(self.adapters) + self._initial)))

    def parts(self) -> Parts:
        # One part a domain: what does not change is not written to a checkpoint again.
        adapters = {f"adapters-{k}": dict(one.state_dict()) for k, one in enumerate(self.adapters)}
        prototypes = {"prototypes": {"rows": self.prototypes.detach()}}
        return {"backbone": dict(self.backbone.state_dict()), **adapters, **prototypes}

    def load_parts(self, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        self.backbone.load_state_dict(dict(parts["backbone"]))
        self.adapters = nn.ModuleList()
        while (key := f"adapters-{len(self.adapters)}") in parts:
            adapters = self._new_adapters()
            adapters.load_state_dict(dict(parts[key]))
            self.adapters.append(adapters)
        self.prototypes = nn.Parameter(parts["prototypes"]["rows"].clone(), requires_grad=False)
        self.requires_grad_(False)
