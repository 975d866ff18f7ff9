"""What methods that rehearse share: a memory of exemplars, images of earlier domains kept by reference.

The memory holds names and checksums, no pixels. For every class of every domain it holds the same number of images,
chosen by herding (iCaRL, Rebuffi et al., CVPR 2017, algorithm 4) with the features of the model after it was trained on
that domain, and never chosen again. An exemplar's target is the row of its (domain, class) pair.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from ductwork import functional as F
from ductwork.backbones.base import Backbone
from ductwork.data.domain import ImageSet, IntArray, Reference
from ductwork.errors import CheckpointError
from ductwork.methods.base import Method, Phase, Stage, TrainingConfig
from ductwork.methods.heads import Rows


class RehearsalConfig(TrainingConfig):
    """Hyper-parameters of every method that keeps exemplars."""

    epochs: int = Field(20, ge=0, description="passes over the domain's training images and the exemplars")
    lr_head: float = Field(1e-3, ge=0, description="learning rate of the whole classifier")
    weight_decay_later: float | None = Field(2e-4, ge=0, description="weight decay from the second domain on")
    exemplars: int = Field(10, ge=1, description="images kept of each class of each domain")


class Exemplars:
    """References to kept images and the row that each belongs to, in the order in which they were chosen."""

    def __init__(self, references: Sequence[Reference] = (), rows: Sequence[int] = ()) -> None:
        self.references, self.rows = list(references), list(rows)

    def __len__(self) -> int:
        return len(self.references)

    def mixture(self, stage: Stage, rows: Rows) -> tuple[ImageSet, IntArray]:
        """The domain's images, then all exemplars, and for each image its row among all rows."""
        targets = stage.domain.targets + rows.span(-1).start
        if not self.references:
            return stage.domain.train, targets
        images = ImageSet.concat([stage.domain.train, stage.recall(self.references)])
        return images, np.concatenate([targets, np.array(self.rows, dtype=np.int64)])

    def add(self, stage: Stage, rows: Rows, features: Tensor, per_class: int) -> None:
        """Choose exemplars of the domain, whose block is the newest, by the features ``[n, d]`` of its images.

        A class with fewer images is kept whole and filled up with repetitions, drawn from torch's generator: what a
        class weighs in rehearsal shall not depend on how many images of it there were.
        """
        start = rows.span(-1).start
        for number in range(len(stage.domain.classes)):
            members = np.flatnonzero(stage.domain.targets == number)
            chosen = members[F.herd(features[torch.from_numpy(members)], per_class).cpu().numpy()]
            kept = stage.references(chosen.tolist())
            again = torch.randint(len(kept), (per_class - len(kept),)).tolist()
            self.references += [*kept, *(kept[i] for i in again)]
            self.rows += [start + number] * per_class

    def means(self, features: Tensor, rows: int) -> Tensor:
        """For each row the mean of its exemplars' normalised features ``[n, d]``, at length 1: ``[R, d]``."""
        unit = nn.functional.normalize(features, dim=1, eps=1e-8)
        total = torch.zeros(rows, features.shape[1], dtype=unit.dtype, device=unit.device)
        # the sum has the direction of the mean
        total.index_add_(0, torch.tensor(self.rows, device=unit.device), unit)
        return nn.functional.normalize(total, dim=1, eps=1e-8)

    def to_json(self) -> list[dict[str, Any]]:
        return [{**vars(ref), "row": row} for ref, row in zip(self.references, self.rows, strict=True)]

    @staticmethod
    def from_json(data: Sequence[Mapping[str, Any]]) -> Exemplars:
        keys = ("domain", "name", "label", "checksum")
        try:
            references = [Reference(*(str(one[key]) for key in keys)) for one in data]
            return Exemplars(references, [int(one["row"]) for one in data])
        except KeyError as error:
            raise CheckpointError(f"an exemplar in the checkpoint has no {error}") from None


class RehearsalMethod(Method):
    """Trains on the domain mixed with exemplars of earlier ones, then chooses the domain's own exemplars.

    The choice is a phase of its own: it begins with fresh seeds, however training before it was interrupted.
    """

    def __init__(self, config: RehearsalConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.config = config
        self.memory = Exemplars()

    def phases(self) -> Sequence[Phase]:
        return [Phase("train", self._train), Phase("exemplars", self._choose)]

    @abstractmethod
    def _train(self, stage: Stage) -> None:
        """Add the domain's block and train on ``mixture``."""

    def _choose(self, stage: Stage) -> None:
        self.memory.add(stage, self.rows, stage.features(self.features), self.config.exemplars)
        stage.records["exemplars"] = len(self.memory)

    def mixture(self, stage: Stage) -> tuple[ImageSet, IntArray]:
        """What to train on in this stage: images, and the row of each among all rows."""
        return self.memory.mixture(stage, self.rows)

    def settings(self, stage: Stage) -> TrainingConfig:
        """The hyper-parameters of training that hold in this stage."""
        if stage.number == 1 or self.config.weight_decay_later is None:
            return self.config
        return self.config.model_copy(update={"weight_decay": self.config.weight_decay_later})

    def extra(self) -> dict[str, Any]:
        return {"exemplars": self.memory.to_json()}

    def load_extra(self, extra: Mapping[str, Any]) -> None:
        self.memory = Exemplars.from_json(extra.get("exemplars", []))
