"""Joint training: one network trained on the images of all domains at once, the upper bound of all other methods.

It is no incremental method: it asks for every earlier image again. At each stage it starts anew from the pre-trained
backbone and trains it, with one row for each class name, on all domains seen so far. The paper gives learning rates
and batch size; epochs and the kind of head are not published. Here the head is a cosine classifier whose rows start as
class centres, and what counts is the accuracy after the last epoch (the paper reports an "optimal" one).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ductwork.backbones.base import Backbone
from ductwork.data.domain import ImageSet, IntArray
from ductwork.methods.base import Group, Method, Parts, Phase, Recipe, Stage, TrainingConfig
from ductwork.methods.heads import CosineHead, Rows

ALL = "all domains"


class JointConfig(TrainingConfig):
    """Hyper-parameters of joint training."""

    epochs: int = Field(20, ge=0, description="passes over the training images of all domains seen")
    lr_backbone: float = Field(1e-4, ge=0, description="learning rate of the backbone")
    lr_head: float = Field(1e-2, ge=0, description="learning rate of the classifier rows and their scale")
    rows_init: Literal["centers", "random"] = Field("centers", description="where the rows start")
    scale_init: float = Field(16.0, gt=0, description="temperature of the cosine classifier at the start")
    last_only: bool = Field(
        True,
        description="train at the last stage of a run only; the stages before compare with class centres of the "
        "pre-trained backbone, so that A_B is the upper bound and A_bar is not",
    )


# The paper's rates are for a large backbone and many steps; on the demo they stop far below what its images allow.
_STREAMS = {"demo": {"lr_backbone": 0.01, "lr_head": 0.1}}


class Joint(Method):
    """All rows form one block, replaced at every stage: a row belongs to a class name, in whatever domain it came.

    With ``last_only`` a stage trains unless the engine knows that further domains follow. Somebody who calls ``learn``
    domain by domain has a trained model after each call; a run over a whole stream trains once.
    """

    name = "joint"
    summary = "trains on all domains together: the upper bound, which needs all images"
    reference = "the upper bound of the paper's supplement: all domains pooled, Eq. 1 minimised directly"
    Config = JointConfig
    recipes: ClassVar[Mapping[str, Recipe]] = {
        "default": Recipe("trained once, at the last stage of a run", streams=_STREAMS),
        "every-stage": Recipe(
            "trained at every stage, for an upper bound of A_bar as well", {"last_only": False}, _STREAMS
        ),
    }
    constant_parts = frozenset({"pretrained"})

    def __init__(self, config: JointConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.config = config
        self.head = CosineHead(backbone.num_features, config.scale_init)
        self.pretrained = {key: value.detach().cpu().clone() for key, value in backbone.state_dict().items()}
        self.sums = torch.zeros(0, backbone.num_features)
        self.counts = torch.zeros(0)
        self.domains: list[tuple[str, str]] = []
        """Name and fingerprint of the training images of each domain seen."""
        self.tuned = False

    def phases(self) -> Sequence[Phase]:
        return [Phase("centers", self._centers), Phase("joint", self._joint)]

    def _centers(self, stage: Stage) -> None:
        """Rows for the classes seen so far: centres of their images in all domains, in the pre-trained features.

        Sums and counts of earlier domains are kept, so a stage passes its own images only.
        """
        self.backbone.load_state_dict(self.pretrained)
        self.tuned = False
        centers, counts = stage.centers(self.backbone).cpu(), torch.from_numpy(stage.domain.train.counts())
        known, present = self.rows.classes, stage.domain.classes
        self.rows = Rows()
        self.rows.add(ALL, sorted({*known, *present}))
        place = {name: i for i, name in enumerate(self.rows.classes)}
        sums, total = torch.zeros(len(place), self.head.width), torch.zeros(len(place))
        old, new = (torch.tensor([place[name] for name in names], dtype=torch.int64) for names in (known, present))
        sums[old], total[old] = self.sums, self.counts
        here = counts[[stage.domain.train.classes.index(name) for name in present]].float()
        sums[new] += centers * here[:, None]
        total[new] += here
        self.sums, self.counts = sums, total
        self._set_rows(sums / total[:, None])
        self.domains = [*self.domains, (stage.domain.name, stage.domain.train.fingerprint)]

    def _joint(self, stage: Stage) -> None:
        config = self.config
        if config.last_only and stage.remaining:
            if stage.number == 1:
                stage.warn("trains at the last stage only (last_only): A_B is an upper bound, A_bar is not")
            return
        if config.rows_init == "random":
            self._set_rows(CosineHead.random_rows(len(self.rows), self.head.width))
        images, targets = self._pooled(stage)
        groups = [
            Group("backbone", list(self.backbone.parameters()), config.lr_backbone),
            Group("head", list(self.head.parameters()), config.lr_head),
        ]
        batches = stage.augmented(config.batch_size, images=images, targets=targets)
        stage.train(nn.Sequential(self.backbone, self.head), batches, groups, config)
        self.tuned = True

    def _pooled(self, stage: Stage) -> tuple[ImageSet, IntArray]:
        earlier = [stage.earlier(name, fingerprint) for name, fingerprint in self.domains[:-1]]
        images = ImageSet.concat([*earlier, stage.domain.train])
        return images, images.relabel(self.rows.classes).labels

    def _set_rows(self, rows: Tensor) -> None:
        self.head.blocks = nn.ParameterList()
        self.head.add_block(rows)
        self.head.scale.data.fill_(self.config.scale_init)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.head(self.backbone(images))
        return scores

    def parts(self) -> Parts:
        centers = {"sums": self.sums, "counts": self.counts}
        parts = {"pretrained": self.pretrained, "head": self.head.export(), "centers": centers}
        return parts | ({"backbone": dict(self.backbone.state_dict())} if self.tuned else {})

    def load_parts(self, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        self.pretrained = dict(parts["pretrained"])
        self.sums, self.counts = parts["centers"]["sums"], parts["centers"]["counts"]
        self.tuned = "backbone" in parts
        self.backbone.load_state_dict(dict(parts["backbone"] if self.tuned else self.pretrained))
        self.head.restore(parts["head"])

    def extra(self) -> dict[str, Any]:
        return {"domains": [list(pair) for pair in self.domains]}

    def load_extra(self, extra: Mapping[str, Any]) -> None:
        self.domains = [(str(name), str(fingerprint)) for name, fingerprint in extra.get("domains", [])]
