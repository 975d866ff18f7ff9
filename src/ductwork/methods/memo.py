"""MEMO: one shared trunk, and for every domain a last block of its own (Zhou et al., ICLR 2023).

The trunk (all blocks of the ViT but the last) is trained on the first domain and then fixed; each later domain gets a
copy of the last block and the final norm, and the classifier sees what all of them make of the trunk's tokens, side by
side. The first specialised block is the backbone's own, so nothing is kept that is not used.

Public versions with ViTs leave the first specialised block at random values, because no pre-trained weight is found
under its name, and every later one starts from what became of it. Here it starts as the pre-trained block. They also
leave out the weight alignment of the original, which is on by default here. ``official`` does as they do in both.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ductwork.backbones import tokens
from ductwork.backbones.base import Backbone
from ductwork.data.loading import Batch
from ductwork.methods.base import Group, Parts, Price, Recipe, Stage
from ductwork.methods.exemplars import RehearsalConfig, RehearsalMethod
from ductwork.methods.heads import LinearHead

_PART = "specialised-"


class MEMOConfig(RehearsalConfig):
    """Hyper-parameters of MEMO."""

    epochs: int = Field(10, ge=0, description="passes over the domain's training images and the exemplars")
    batch_size: int = Field(32, ge=1, description="images a step, over all devices")
    alpha_aux: float = Field(1.0, ge=0, description="weight of the auxiliary loss: which new class, or any old domain")
    weight_align: bool = Field(True, description="after the first domain, scale new rows to the mean length of the old")
    specialised_init: Literal["pretrained", "random"] = Field(
        "pretrained", description="where the first specialised block starts; later ones start from the one before"
    )


class MEMO(RehearsalMethod):
    """The first domain trains trunk, first specialised block and head; later ones their own block and the head."""

    name = "memo"
    summary = "fixed trunk, a last block for every domain, and a head over all of them"
    reference = "Zhou et al., A Model or 603 Exemplars: Towards Memory-Efficient Class-Incremental Learning, ICLR 2023"
    Config = MEMOConfig
    recipes: ClassVar[Mapping[str, Recipe]] = {
        "default": Recipe("the original's losses and alignment, with the settings that public versions have for ViTs"),
        "official": Recipe(
            "as public versions do: random specialised block, no weight alignment",
            {"specialised_init": "random", "weight_align": False},
        ),
    }
    config: MEMOConfig

    def __init__(self, config: MEMOConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.config = config
        self.specialised = nn.ModuleList()
        self.head = WideningHead()

    @classmethod
    def check(cls, backbone: Backbone) -> None:
        tokens.require_vit(backbone, cls.name)

    def _train(self, stage: Stage) -> None:
        block = self.rows.add(stage.domain.name, stage.domain.classes)
        if len(self.rows.blocks) > 1:
            self.specialised.append(copy.deepcopy(self._newest()))
        elif self.config.specialised_init == "random":
            _randomise(self.backbone.model.blocks[-1])
        self.head.grow(len(self.rows), len(self.rows.blocks) * self.backbone.num_features)
        self.head.to(stage.device)
        self._freeze()
        images, targets = self.mixture(stage)
        config = self.settings(stage)
        batches = stage.augmented(config.batch_size, images=images, targets=targets)
        if len(self.rows.blocks) == 1:
            stage.train(nn.Sequential(self.backbone, self.head), batches, self._groups(self.backbone), config)
            return
        new = self.specialised[-1]
        auxiliary = LinearHead(self.backbone.num_features)  # only training needs it, and every stage a new one
        auxiliary.add_block(LinearHead.random_rows(len(block) + 1, auxiliary.width))
        model = _Expanding(self, new, auxiliary.to(stage.device))
        groups = [*self._groups(new), Group("auxiliary", list(auxiliary.parameters()), config.lr_head)]
        stage.train(model, batches, groups, config, loss=self._loss)
        if self.config.weight_align:
            stage.records["weight_align"] = self.head.align(len(block))

    def _groups(self, extractor: nn.Module) -> list[Group]:
        return [
            Group("backbone", list(extractor.parameters()), self.config.lr_backbone),
            Group("head", list(self.head.parameters()), self.config.lr_head),
        ]

    def _loss(self, outputs: tuple[Tensor, Tensor], batch: Batch) -> Tensor:
        logits, auxiliary = outputs
        loss = nn.functional.cross_entropy(logits, batch.targets)
        # 0 is every old row, then come the rows of the newest block
        kinds = (batch.targets - self.rows.span(-1).start + 1).clamp(min=0)
        return loss + self.config.alpha_aux * nn.functional.cross_entropy(auxiliary, kinds)

    def _newest(self) -> nn.Module:
        """The last specialised block with its norm; the backbone's own are the first."""
        if not len(self.specialised):
            return _Specialised(self.backbone.model.blocks[-1], self.backbone.model.norm)
        newest: nn.Module = self.specialised[-1]
        return newest

    def _freeze(self) -> None:
        """Everything that is not trained while the newest block is, stays to the bit."""
        self.backbone.requires_grad_(not len(self.specialised))
        for number, module in enumerate(self.specialised, start=1):
            module.requires_grad_(number == len(self.specialised))

    def expand(self, images: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Tokens ``[n, T, d]`` of the trunk and the features ``[n, count * d]`` of the first specialised blocks."""
        backbone = self.backbone
        last = len(backbone.model.blocks) - 1
        shared = tokens.run_blocks(backbone, tokens.embed(backbone, images), stop=last)
        own = tokens.finish(backbone, tokens.run_blocks(backbone, shared, start=last))
        finished = [own, *(module(shared) for module in list(self.specialised)[: count - 1])]
        return shared, torch.cat([tokens.pool(backbone, one) for one in finished], dim=1)

    def features(self, images: Tensor) -> Tensor:
        return self.expand(images, len(self.specialised) + 1)[1]

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.head(self.features(images))
        return scores

    def parts(self) -> Parts:
        parts = {"backbone": dict(self.backbone.state_dict()), "head": self.head.export()}
        return parts | {f"{_PART}{k}": dict(one.state_dict()) for k, one in enumerate(self.specialised, start=2)}

    def load_parts(self, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        self.backbone.load_state_dict(dict(parts["backbone"]))
        self.head.restore(parts["head"])
        self.specialised = nn.ModuleList()
        while (key := f"{_PART}{len(self.specialised) + 2}") in parts:
            self.specialised.append(copy.deepcopy(self._newest()))
            self.specialised[-1].load_state_dict(dict(parts[key]))
        self._freeze()

    def price(self) -> Price:
        """The auxiliary head is trained like the rest, but is no part of what was learned."""
        found = super().price()
        if len(self.specialised):
            found.trainable_parameters += (len(self.rows.blocks[-1]) + 1) * (self.backbone.num_features + 1)
        found.inference_passes = 1 + len(self.specialised) / len(self.backbone.model.blocks)
        return found


class WideningHead(nn.Module):
    """A linear classifier that grows in both directions: rows for a new domain, columns for a new block's features."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(0, 0))
        self.bias = nn.Parameter(torch.empty(0))

    def forward(self, features: Tensor) -> Tensor:
        return nn.functional.linear(features, self.weight, self.bias)

    def grow(self, rows: int, columns: int) -> None:
        """Make it ``[rows, columns]``. The old values are the upper left corner; all others, also the new columns of
        old rows, are drawn as PyTorch draws a linear layer for linear output; new biases are 0."""
        weight, bias = LinearHead.random_rows(rows, columns), torch.zeros(rows)
        old = self.weight.shape
        weight[: old[0], : old[1]] = self.weight.detach().cpu()
        bias[: old[0]] = self.bias.detach().cpu()
        self.restore({"weight": weight, "bias": bias})

    @torch.no_grad()
    def align(self, new: int) -> float:
        """Scale the ``new`` last rows to the mean length of the others; the factor."""
        lengths = self.weight.norm(dim=1)
        factor = lengths[:-new].mean() / lengths[-new:].mean()
        self.weight[-new:] *= factor
        return float(factor)

    def export(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.state_dict().items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        device = self.weight.device
        self.weight = nn.Parameter(tensors["weight"].to(device, copy=True))
        self.bias = nn.Parameter(tensors["bias"].to(device, copy=True))


class _Specialised(nn.Module):
    """The last block of a Vision Transformer and the final norm: tokens to finished tokens."""

    def __init__(self, block: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.block, self.norm = block, norm

    def forward(self, shared: Tensor) -> Tensor:
        finished: Tensor = self.norm(self.block(shared))
        return finished


class _Expanding(nn.Module):
    """What is trained after the first domain: the newest block, the head over all, the auxiliary head over its own."""

    def __init__(self, method: MEMO, new: nn.Module, auxiliary: nn.Module) -> None:
        super().__init__()
        self.new, self.head, self.auxiliary = new, method.head, auxiliary
        # In a tuple the rest is no submodule: it stays in evaluation mode and is neither saved nor wrapped.
        self._method = (method,)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        (method,) = self._method
        with torch.no_grad():
            shared, old = method.expand(images, len(method.specialised))
        own = tokens.pool(method.backbone, self.new(shared))
        return self.head(torch.cat([old, own], dim=1)), self.auxiliary(own)


def _randomise(block: Any) -> None:
    """Values as timm gives them to a Vision Transformer without pre-trained weights."""
    for module in block.modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.LayerNorm):
            module.reset_parameters()
