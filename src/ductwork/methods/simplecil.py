"""SimpleCIL: class centres of the frozen pre-trained backbone, compared by cosine. The baseline of Table 2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor

from ductwork.backbones.base import Backbone
from ductwork.methods.base import BackboneAndHead, MethodConfig, Phase, Recipe, Stage
from ductwork.methods.heads import CosineHead


class SimpleCILConfig(MethodConfig):
    """SimpleCIL has no hyper-parameters."""


class SimpleCIL(BackboneAndHead):
    """Nothing is trained. Each block holds the plain means of its classes' features (not normalised before)."""

    name = "simplecil"
    summary = "class centres of the frozen backbone; never adapts, never forgets"
    reference = "Zhou et al., Revisiting Class-Incremental Learning with Pre-Trained Models, arXiv 2303.07338"
    Config = SimpleCILConfig
    recipes: ClassVar[Mapping[str, Recipe]] = {"default": Recipe("the method has nothing to set")}
    constant_parts = frozenset({"backbone"})
    head: CosineHead

    def __init__(self, config: SimpleCILConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.backbone.requires_grad_(False)
        self.head = CosineHead(backbone.num_features)
        self.head.requires_grad_(False)

    def phases(self) -> Sequence[Phase]:
        return [Phase("centers", self._centers)]

    def _centers(self, stage: Stage) -> None:
        centers = stage.centers(self.backbone)
        self.rows.add(stage.domain.name, stage.domain.classes)
        self.head.add_block(centers).requires_grad_(False)

    def load_parts(self, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        super().load_parts(parts)
        self.head.requires_grad_(False)
