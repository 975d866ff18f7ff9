"""Replay: Finetune that sees a few images of every earlier domain again, in one softmax over all rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import nn

from ductwork.backbones.base import Backbone
from ductwork.methods.base import BackboneAndHead, Group, Recipe, Stage
from ductwork.methods.exemplars import RehearsalConfig, RehearsalMethod
from ductwork.methods.heads import LinearHead


class ReplayConfig(RehearsalConfig):
    """Hyper-parameters of Replay. Training is that of Finetune, so that the exemplars are the only difference."""


class Replay(BackboneAndHead, RehearsalMethod):
    """The domain and the exemplars are mixed without balancing; backbone and all rows are trained."""

    name = "replay"
    summary = "trains on the new domain and ten old images of each class and domain"
    reference = "Ratcliff, Connectionist models of recognition memory, Psychological Review 97(2), 1990"
    Config: ClassVar[type[RehearsalConfig]] = ReplayConfig
    recipes: ClassVar[Mapping[str, Recipe]] = {"default": Recipe("the settings of Finetune, ten exemplars by herding")}
    head: LinearHead

    def __init__(self, config: RehearsalConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.head = LinearHead(backbone.num_features)

    def _train(self, stage: Stage) -> None:
        self._grow(stage)
        images, targets = self.mixture(stage)
        config = self.settings(stage)
        batches = stage.augmented(config.batch_size, images=images, targets=targets)
        stage.train(nn.Sequential(self.backbone, self.head), batches, self._groups(), config)

    def _grow(self, stage: Stage) -> None:
        block = self.rows.add(stage.domain.name, stage.domain.classes)
        self.head.add_block(LinearHead.random_rows(len(block), self.head.width))
        self.head.to(stage.device)

    def _groups(self) -> Sequence[Group]:
        return [
            Group("backbone", list(self.backbone.parameters()), self.config.lr_backbone),
            Group("head", list(self.head.parameters()), self.config.lr_head),
        ]
