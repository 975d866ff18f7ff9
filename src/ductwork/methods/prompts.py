"""What the methods share that learn prompts for a frozen backbone: the query, the choice by keys, and the stage.

The backbone runs twice for an image. The first pass, without prompts and without gradients, gives the query: the class
token of the pre-trained model. It decides which prompts take part in the second pass, whose features are classified.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from ductwork.backbones.base import Backbone
from ductwork.backbones.tokens import embed, finish, pool, require_vit, run_blocks
from ductwork.data.loading import Batch
from ductwork.data.slices import sum_over_batch
from ductwork.errors import BackboneError
from ductwork.methods.base import Group, Method, Parts, Phase, Price, Stage, TrainingConfig
from ductwork.methods.heads import LinearHead


class PromptConfig(TrainingConfig):
    """How prompts are trained."""

    epochs: int = Field(5, ge=0, description="passes over the domain's training images")
    batch_size: int = Field(16, ge=1, description="images a step, over all devices")
    optimizer: Literal["sgd", "adam", "adamw"] = Field("adam", description="the optimiser, new for each domain")
    weight_decay: float = Field(0.0, ge=0, description="weight decay of everything that is trained")
    lr_backbone: float = Field(1e-3, ge=0, description="learning rate of the prompts and their keys")
    lr_head: float = Field(1e-3, ge=0, description="learning rate of the classifier rows")


class PromptMethod(Method):
    """A frozen backbone, prompts that enter it, and a linear head of which the newest block is trained.

    Subclasses say what prompts a stage adds (``grow``), which it trains (``trained``) and how they enter
    (``prompted``). All of them are in ``prompts``, by name.
    """

    constant_parts = frozenset({"backbone"})
    drop_last = False
    """Whether an incomplete last batch of an epoch is left out."""

    def __init__(self, config: PromptConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.config = config
        self.backbone.requires_grad_(False)
        self.head = LinearHead(backbone.num_features)
        self.prompts = nn.ParameterDict()

    @classmethod
    def check(cls, backbone: Backbone) -> None:
        require_vit(backbone, cls.name)

    @abstractmethod
    def grow(self, stage: Stage) -> None:
        """Add what this stage needs, with ``add``. The domain's block is already in ``rows``."""

    @abstractmethod
    def trained(self) -> list[nn.Parameter]:
        """The prompts and keys that the newest stage trains."""

    @abstractmethod
    def prompted(self, tokens: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
        """Features ``[n, d]`` of embedded images, and what is added to the loss: a number, or one for each image."""

    def add(self, name: str, values: Tensor) -> nn.Parameter:
        parameter = nn.Parameter(values.float().to(next(self.backbone.parameters()).device))
        self.prompts[name] = parameter
        return parameter

    def phases(self) -> Sequence[Phase]:
        return [Phase("prompts", self._learn)]

    def _learn(self, stage: Stage) -> None:
        config = self.config
        block = self.rows.add(stage.domain.name, stage.domain.classes)
        self.head.add_block(LinearHead.random_rows(len(block), self.head.width))
        self.grow(stage)
        groups = self._groups()
        self.requires_grad_(False)
        for group in groups:
            for parameter in group.parameters:
                parameter.requires_grad_(True)
        batches = stage.augmented(config.batch_size, drop_last=self.drop_last)
        stage.train(_NewestBlock(self), batches, groups, config, loss=_cross_entropy_and_penalty)

    def _groups(self) -> list[Group]:
        head = [self.head.blocks[-1], self.head.biases[-1]]
        return [Group("prompts", self.trained(), self.config.lr_backbone), Group("head", head, self.config.lr_head)]

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor]:
        tokens = embed(self.backbone, images)
        with torch.no_grad():
            query = pool(self.backbone, finish(self.backbone, run_blocks(self.backbone, tokens)))
        return self.prompted(tokens, query.float())

    def with_prefixes(self, tokens: Tensor, prefixes: Mapping[int, tuple[Tensor, Tensor]]) -> Tensor:
        """Features of the second pass where prompts are keys and values, by block."""
        return pool(self.backbone, finish(self.backbone, run_blocks(self.backbone, tokens, prefixes=prefixes)))

    def features(self, images: Tensor) -> Tensor:
        return self.encode(images)[0]

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.head(self.features(images))
        return scores

    def train(self, mode: bool = True) -> Self:
        """Frozen means without dropout, too: the query of an image is always the same."""
        super().train(mode)
        self.backbone.eval()
        return self

    def parts(self) -> Parts:
        prompts = {name: value.detach().clone() for name, value in self.prompts.items()}
        return {"backbone": dict(self.backbone.state_dict()), "prompts": prompts, "head": self.head.export()}

    def load_parts(self, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        self.backbone.load_state_dict(dict(parts["backbone"]))
        self.head.restore(parts["head"])
        self.prompts = nn.ParameterDict()
        for name, value in parts["prompts"].items():
            self.add(name, value.clone())

    def price(self) -> Price:
        trained = sum(p.numel() for group in self._groups() for p in group.parameters) if self.rows.blocks else 0
        return Price(sum(p.numel() for p in self.parameters()), trained, inference_passes=2)


class _NewestBlock(nn.Module):
    """What is trained on one domain: images to the logits of its own block, and the method's addition to the loss."""

    def __init__(self, method: PromptMethod) -> None:
        super().__init__()
        self.method = method

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features, penalty = self.method.encode(images)
        return self.method.head(features, -1), penalty


def _cross_entropy_and_penalty(outputs: tuple[Tensor, Tensor], batch: Batch) -> Tensor:
    logits, penalty = outputs
    return nn.functional.cross_entropy(logits, batch.targets) + penalty.mean()


def most_frequent(ids: Tensor, size: int, count: int) -> Tensor:
    """The ``count`` numbers below ``size`` that occur most often in ``ids``; of two that are level the lower first."""
    occurrences = sum_over_batch(torch.stack([(ids == number).sum() for number in range(size)]))
    return occurrences.argsort(descending=True, stable=True)[:count]


def uniform(limit: float, *shape: int) -> Tensor:
    return torch.empty(*shape).uniform_(-limit, limit)


def layers_within(backbone: Backbone, wanted: Iterable[int], method_name: str) -> tuple[int, ...]:
    """Those of the ``wanted`` layers, counted from 0, that the backbone has.

    A shallow backbone gets fewer prompted layers, not the same number at other places: the layers of a method are
    places where its authors found prompts to help, and the first ones mean much the same in every depth.
    """
    wanted, depth = tuple(wanted), len(backbone.model.blocks)
    found = tuple(layer for layer in wanted if layer < depth)
    if wanted and not found:
        raise BackboneError(
            f"{method_name!r} puts prompts into the layers {list(wanted)}, counted from 0, and {backbone.name!r} has "
            f"{depth} layers: name lower ones"
        )
    return found
