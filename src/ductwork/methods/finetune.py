"""Finetune: go on training the same network on every new domain (Eq. 2). It shows what forgetting is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from pydantic import Field

from ductwork.backbones.base import Backbone
from ductwork.methods.base import BackboneAndHead, Group, Phase, Recipe, Stage, TrainingConfig
from ductwork.methods.heads import BlockClassifier, LinearHead, cross_entropy_with_decay


class FinetuneConfig(TrainingConfig):
    """Hyper-parameters of Finetune."""

    epochs: int = Field(20, ge=0, description="passes over the domain's training images")
    lr_head: float = Field(1e-3, ge=0, description="learning rate of the classifier rows")
    weight_decay_later: float | None = Field(2e-4, ge=0, description="weight decay from the second domain on")
    decay_old_rows: bool = Field(False, description="old rows shrink under weight decay, as in public versions")


class Finetune(BackboneAndHead):
    """Backbone and the new rows are trained with cross entropy on the new block; the backbone goes on from before."""

    name = "finetune"
    summary = "trains the same network on every new domain; adapts and forgets"
    reference = "the lower bound of the paper, Section 3.2, Eq. 2"
    Config = FinetuneConfig
    recipes: ClassVar[Mapping[str, Recipe]] = {
        "default": Recipe("the published settings; rows that are not trained stay as they are"),
        "official": Recipe("as public versions do: old rows decay", {"decay_old_rows": True}),
    }
    head: LinearHead

    def __init__(self, config: FinetuneConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.config = config
        self.head = LinearHead(backbone.num_features)

    def phases(self) -> Sequence[Phase]:
        return [Phase("finetune", self._finetune)]

    def _finetune(self, stage: Stage) -> None:
        config = self.config
        if stage.number > 1 and config.weight_decay_later is not None:
            config = config.model_copy(update={"weight_decay": config.weight_decay_later})
        block = self.rows.add(stage.domain.name, stage.domain.classes)
        self.head.add_block(LinearHead.random_rows(len(block), self.head.width))
        old = [*self.head.old_blocks(), *list(self.head.biases)[:-1]] if config.decay_old_rows else []
        groups = [
            Group("backbone", list(self.backbone.parameters()), config.lr_backbone),
            Group("head", [self.head.blocks[-1], self.head.biases[-1], *old], config.lr_head),
        ]
        stage.train(
            BlockClassifier(self.backbone, self.head),
            stage.augmented(config.batch_size),
            groups,
            config,
            loss=cross_entropy_with_decay(old),
        )
