"""Classifiers that grow by one block of rows a stage.

A row belongs to one (domain, class name) pair. ``Rows`` is the book of who owns which row; ``CosineHead`` and
``LinearHead`` hold the numbers. Each block is a parameter of its own, so that what is not trained cannot move:
not by gradients, not by momentum, not by weight decay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ductwork import functional as F
from ductwork.data.loading import Batch
from ductwork.errors import CheckpointError


@dataclass(frozen=True)
class Block:
    """The rows that one stage added."""

    domain: str
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.classes)


class Rows:
    """Which (domain, class) pair each row of the classifier stands for."""

    def __init__(self, blocks: Sequence[Block] = ()) -> None:
        self.blocks: list[Block] = list(blocks)

    def __len__(self) -> int:
        return sum(len(block) for block in self.blocks)

    def add(self, domain: str, classes: Sequence[str]) -> Block:
        self.blocks.append(Block(domain, tuple(classes)))
        return self.blocks[-1]

    @property
    def classes(self) -> tuple[str, ...]:
        """All class names learned so far, sorted."""
        return tuple(sorted({name for block in self.blocks for name in block.classes}))

    def row_class(self) -> Tensor:
        """For each row the place of its class in ``classes``: int64 ``[R]``."""
        place = {name: i for i, name in enumerate(self.classes)}
        return torch.tensor([place[name] for block in self.blocks for name in block.classes], dtype=torch.int64)

    def row_block(self) -> Tensor:
        """For each row the number of its block, from 0: int64 ``[R]``."""
        return torch.tensor([i for i, block in enumerate(self.blocks) for _ in block.classes], dtype=torch.int64)

    def span(self, block: int) -> slice:
        """The rows of one block (negative numbers count from the end)."""
        block = block % len(self.blocks)
        start = sum(len(b) for b in self.blocks[:block])
        return slice(start, start + len(self.blocks[block]))

    def to_json(self) -> list[dict[str, object]]:
        return [{"domain": block.domain, "classes": list(block.classes)} for block in self.blocks]

    @staticmethod
    def from_json(data: Sequence[Mapping[str, object]]) -> Rows:
        return Rows([Block(str(b["domain"]), tuple(b["classes"])) for b in data])  # type: ignore[arg-type]


class GrowingHead(nn.Module):
    """What both classifiers share: blocks of rows ``[C_b, d]`` that are added and restored."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.blocks = nn.ParameterList()

    def add_block(self, rows: Tensor) -> nn.Parameter:
        block = nn.Parameter(rows.detach().to(self._device(), torch.float32).clone())
        self.blocks.append(block)
        return block

    def weight(self) -> Tensor:
        """All rows ``[R, d]``."""
        return torch.cat([*self.blocks]) if len(self.blocks) else torch.empty(0, self.width, device=self._device())

    def old_blocks(self) -> list[nn.Parameter]:
        return list(self.blocks)[:-1]

    def export(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.state_dict().items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what ``export`` gave, whatever this head held before."""
        self.blocks = nn.ParameterList()
        while (key := f"blocks.{len(self.blocks)}") in tensors:
            self.add_block(tensors[key])
        try:
            self.load_state_dict(dict(tensors))
        except RuntimeError as error:
            raise CheckpointError(f"the classifier in the checkpoint does not fit: {error}") from None

    def _device(self) -> torch.device:
        return next((p.device for p in self.parameters()), torch.device("cpu"))


class CosineHead(GrowingHead):
    """``z_j = scale * cos(f, w_j)``: the classifier of the paper. ``scale`` belongs to all rows and may be learned."""

    def __init__(self, width: int, scale: float = 1.0) -> None:
        super().__init__(width)
        self.scale = nn.Parameter(torch.tensor(float(scale)))

    def forward(self, features: Tensor, block: int | None = None) -> Tensor:
        """Logits ``[n, R]``, or ``[n, C_b]`` of one block."""
        weight = self.weight() if block is None else self.blocks[block]
        return F.cosine_logits(features, weight, self.scale)

    def begin_at(self, centers: Tensor, scale: float) -> None:
        """Put the newest rows at class centres ``[C_b, d]``, and the temperature at ``scale``.

        The angle of a row moves with the inverse of its length: of length 1, a learning rate means the same on every
        backbone, whatever the length of its features.
        """
        self.blocks[-1].data.copy_(nn.functional.normalize(centers))
        self.scale.data.fill_(scale)

    @staticmethod
    def random_rows(classes: int, width: int) -> Tensor:
        return torch.empty(classes, width).uniform_(-(width**-0.5), width**-0.5)


class LinearHead(GrowingHead):
    """``z_j = w_j . f + b_j``, rows drawn as PyTorch draws a linear layer for linear output, biases at 0."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.biases = nn.ParameterList()

    def add_block(self, rows: Tensor) -> nn.Parameter:
        block = super().add_block(rows)
        self.biases.append(nn.Parameter(torch.zeros(len(rows), device=block.device)))
        return block

    def forward(self, features: Tensor, block: int | None = None) -> Tensor:
        """Logits ``[n, R]``, or ``[n, C_b]`` of one block."""
        if block is not None:
            return nn.functional.linear(features, self.blocks[block], self.biases[block])
        return nn.functional.linear(features, self.weight(), torch.cat([*self.biases]))

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.biases = nn.ParameterList()
        super().restore(tensors)

    @staticmethod
    def random_rows(classes: int, width: int) -> Tensor:
        bound = (3.0 / width) ** 0.5
        return torch.empty(classes, width).uniform_(-bound, bound)


class BlockClassifier(nn.Module):
    """What is trained on one domain: features, then the logits of the domain's own block, ``[n, C_b]``.

    Leaving the other rows out is the same as setting their logits to minus infinity: same loss, same gradients.
    """

    def __init__(self, features: nn.Module, head: CosineHead | LinearHead, block: int = -1) -> None:
        super().__init__()
        self.features, self.head, self.block = features, head, block

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(inputs), self.block)
        return logits


def cross_entropy_with_decay(still: Sequence[nn.Parameter]) -> Callable[[Tensor, Batch], Tensor]:
    """Cross entropy that gives the parameters in ``still`` a gradient of zero, so that weight decay acts on them.

    The released code keeps all rows in one parameter: old rows get no gradient of the loss but shrink all the same.
    """

    def loss(logits: Tensor, batch: Batch) -> Tensor:
        value = nn.functional.cross_entropy(logits, batch.targets)
        return value + sum((0.0 * p.sum() for p in still), value.new_zeros(()))

    return loss
