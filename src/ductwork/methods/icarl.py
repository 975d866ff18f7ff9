"""iCaRL: Replay whose old rows also imitate the network of the stage before (Rebuffi et al., CVPR 2017).

The published sources differ. The original trains sigmoids and predicts by the nearest mean of exemplars; the public
versions that the paper builds on train a softmax, distil with a softmax at temperature 2 (not multiplied by its
square), and report the linear head. The latter is the default here; the accuracy of the other classifier is recorded.

With domains instead of classes, distillation keeps old rows high on images of the new domain, where cross entropy wants
the new row of the same class to win: the two pull one class apart. That is the method, not an error.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ductwork import functional as F
from ductwork.backbones.base import Backbone
from ductwork.data.loading import Batch
from ductwork.methods.base import Parts, Price, Recipe, Stage
from ductwork.methods.exemplars import RehearsalConfig
from ductwork.methods.replay import Replay


class ICaRLConfig(RehearsalConfig):
    """Hyper-parameters of iCaRL."""

    temperature: float = Field(2.0, gt=0, description="temperature of both softmaxes in the distillation")
    distillation: float = Field(1.0, ge=0, description="weight of the distillation beside the cross entropy")
    classifier: Literal["head", "nme"] = Field(
        "head", description="what predicts: the linear head or the nearest mean of exemplars; the other one is recorded"
    )


class ICaRL(Replay):
    """Cross entropy over all rows, plus distillation over the old rows from a frozen copy of the network before."""

    name = "icarl"
    summary = "Replay with distillation from the network of the stage before"
    reference = "Rebuffi et al., iCaRL: Incremental Classifier and Representation Learning, CVPR 2017"
    Config = ICaRLConfig
    recipes: ClassVar[Mapping[str, Recipe]] = {
        "default": Recipe("softmax distillation and the linear head, as public versions report it"),
        "nme": Recipe("predicts by the nearest mean of exemplars, as the original does", {"classifier": "nme"}),
    }
    config: ICaRLConfig

    def __init__(self, config: ICaRLConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.config = config
        self.means: Tensor = torch.empty(0, backbone.num_features)

    def _train(self, stage: Stage) -> None:
        # Both are as the stage before left them, also when a killed run starts this phase again: nothing to save.
        teacher = copy.deepcopy(nn.Sequential(self.backbone, self.head)).requires_grad_(False).eval()
        self._grow(stage)
        images, targets = self.mixture(stage)
        config = self.settings(stage)
        batches = stage.augmented(config.batch_size, images=images, targets=targets)
        model = _Taught(nn.Sequential(self.backbone, self.head), teacher if len(self.rows.blocks) > 1 else None)
        stage.train(model, batches, self._groups(), config, loss=self._loss)

    def _loss(self, outputs: tuple[Tensor, Tensor | None], batch: Batch) -> Tensor:
        logits, taught = outputs
        loss = nn.functional.cross_entropy(logits, batch.targets)
        if taught is None:
            return loss
        return loss + self.config.distillation * distill(logits, taught, self.config.temperature)

    def _choose(self, stage: Stage) -> None:
        super()._choose(stage)
        # The features of old exemplars have changed with the backbone, so all means are computed anew.
        features = stage.features(self.features, images=stage.recall(self.memory.references))
        self.means = self.memory.means(features, len(self.rows))

    def forward(self, images: Tensor) -> Tensor:
        return self.outputs(images)["final"]

    def outputs(self, images: Tensor) -> dict[str, Tensor]:
        features = self.features(images)
        scores = {"head": self.head(features), "nme": self._nearest(features)}
        return {"final": scores.pop(self.config.classifier), **scores}

    def _nearest(self, features: Tensor) -> Tensor:
        """Cosines: of unit vectors the nearest is the one at the smallest angle."""
        return F.cosine_logits(features, self.means.to(features.device))

    def price(self) -> Price:
        found = super().price()
        if self.config.classifier == "nme":  # otherwise prediction does without the means
            found.parameters += self.means.numel()
        return found

    def parts(self) -> Parts:
        return {**super().parts(), "means": {"means": self.means}}

    def load_parts(self, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        super().load_parts(parts)
        self.means = parts["means"]["means"]


def distill(logits: Tensor, taught: Tensor, temperature: float) -> Tensor:
    """Mean cross entropy of the first ``taught.shape[1]`` logits against the teacher's, both softened.

    Args:
        logits: ``[n, R]`` of the network in training.
        taught: ``[n, R_old]`` of the teacher.
        temperature: both are divided by it; the loss is not multiplied by its square.
    """
    old = logits[:, : taught.shape[1]]
    shares = torch.softmax(taught / temperature, dim=1)
    return -(shares * torch.log_softmax(old / temperature, dim=1)).sum(dim=1).mean()


class _Taught(nn.Module):
    """The network in training and what the teacher says of the same images."""

    def __init__(self, student: nn.Module, teacher: nn.Module | None) -> None:
        super().__init__()
        self.student = student
        # In a tuple it is no submodule: neither put into training mode, nor saved, nor wrapped.
        self._teacher = (teacher,)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        (teacher,) = self._teacher
        if teacher is None:
            return self.student(images), None
        with torch.no_grad():
            taught = teacher(images)
        return self.student(images), taught
