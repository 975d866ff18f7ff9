"""What a method is, and what the engine offers it.

A method never touches files, devices, progress bars or argument parsing. It lists the phases of a stage; each phase
gets a ``Stage``, the engine's bench for one domain, with batches, features, a training loop and a record book.
Between two phases everything that matters is in ``parts()``, so that a run can stop there and go on elsewhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from ductwork import functional as F
from ductwork.backbones.base import Backbone
from ductwork.data.domain import Domain, ImageSet, Reference
from ductwork.data.loading import Batch
from ductwork.methods.heads import GrowingHead, Rows

Parts = dict[str, dict[str, Tensor]]
Loss = Callable[[Any, Batch], Tensor]


class MethodConfig(BaseModel):
    """Base of all hyper-parameters. Unknown keys and impossible values are errors; nothing is silently ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


class TrainingConfig(MethodConfig):
    """How a network is trained on one domain."""

    epochs: int = Field(15, ge=0, description="passes over the domain's training images")
    batch_size: int = Field(128, ge=1, description="images a step, over all devices")
    optimizer: Literal["sgd", "adam", "adamw"] = Field("sgd", description="the optimiser, new for each domain")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of SGD, or the first beta of Adam")
    weight_decay: float = Field(5e-4, ge=0, description="weight decay of everything that is trained")
    lr_backbone: float = Field(1e-3, ge=0, description="learning rate of the backbone, or of what replaces it")
    lr_head: float = Field(0.1, ge=0, description="learning rate of the classifier rows and their scale")
    schedule: Literal["constant", "cosine", "cosine-coda", "step-up"] = Field(
        "constant",
        description="learning rate over time; step-up: a third for five epochs, then the full rate; cosine-coda: "
        "a cosine that is still at 1.6 % in the last epoch",
    )
    clip_norm: float | None = Field(None, gt=0, description="gradients are clipped to this norm")
    accumulate: int = Field(1, ge=1, description="batches whose gradients are added up before a step")


class Recipe(NamedTuple):
    """A named set of hyper-parameters: values for every stream, and values that hold on one stream only."""

    summary: str
    values: Mapping[str, Any] = {}
    streams: Mapping[str, Mapping[str, Any]] = {}

    def on(self, stream: str) -> dict[str, Any]:
        return {**self.values, **self.streams.get(stream, {})}


@dataclass(frozen=True)
class Group:
    """Parameters that share a learning rate."""

    name: str
    parameters: Sequence[nn.Parameter]
    lr: float
    weight_decay: float | None = None


class Batches(Protocol):
    """What the training loop draws from. ``epoch`` is a pure function of its number and the run's seed."""

    def __len__(self) -> int: ...

    def epoch(self, number: int) -> Iterator[Batch]: ...


class Stage(Protocol):
    """The engine's bench for one domain."""

    domain: Domain
    number: int
    device: torch.device
    remaining: int
    """Domains of which it is known that they will follow; 0 if there are none or nobody knows."""
    records: dict[str, Any]
    """JSON values that the stage's record shall hold. What one phase writes a later one may read."""

    def augmented(
        self,
        batch_size: int,
        *,
        images: ImageSet | None = None,
        targets: npt.NDArray[np.int64] | None = None,
        drop_last: bool = False,
    ) -> Batches:
        """Shuffled, augmented training batches; targets are rows of the domain's block unless given."""
        ...

    def train(
        self,
        model: nn.Module,
        batches: Batches,
        groups: Sequence[Group],
        config: TrainingConfig,
        *,
        loss: Loss | None = None,
        epochs: int | None = None,
        freeze_batch_norm: bool = False,
    ) -> None:
        """Train ``model`` in place. Cross entropy of its output unless ``loss(outputs, batch)`` is given."""
        ...

    def centers(self, model: Callable[[Tensor], Tensor]) -> Tensor:
        """Class centres ``[C_b, d]`` of the domain's classes (Eq. 5), one pass over the test view of its images."""
        ...

    def features(
        self, model: Callable[[Tensor], Tensor], *, views: int | None = None, images: ImageSet | None = None
    ) -> Tensor:
        """Features without gradients: ``[n, d]`` of the test view, or ``[views, n, d]`` of augmented views."""
        ...

    def cached(self, inputs: Tensor, batch_size: int) -> Batches:
        """Shuffled batches of features ``[V, n, d]`` of the domain's images; epoch ``e`` sees view ``e mod V``."""
        ...

    def inputs(self) -> Iterator[Tensor]:
        """One pass over the test view of the domain's training images, batch by batch, on the device."""
        ...

    def references(self, positions: Sequence[int]) -> list[Reference]:
        """Names and checksums of training images of the domain, for a method that will want to see them again."""
        ...

    def recall(self, references: Sequence[Reference]) -> ImageSet:
        """The images that references name, in the same order; an error where one is gone or has changed."""
        ...

    def earlier(self, domain: str, fingerprint: str) -> ImageSet:
        """All training images of a domain learned before, which only an upper bound may ask for; none is decoded.

        An error where they are gone, or where ``ImageSet.fingerprint`` is another one than it was.
        """
        ...

    def probe(self, name: str, score: Callable[[Tensor], Tensor]) -> None:
        """Where the user asked for it: measure A_b of row scores ``score(images)`` now, as ``after[name]``."""
        ...

    def warn(self, message: str) -> None:
        """Tell the user something that is not an error."""
        ...


class Phase(NamedTuple):
    """A named part of a stage. The engine times it, saves after it, and can start again at it."""

    name: str
    run: Callable[[Stage], None]


@dataclass
class Price:
    """What a trained method costs: all parameters, those that a stage trains, forward passes an image."""

    parameters: int
    trainable_parameters: int
    inference_passes: float = 1.0


class Method(nn.Module, ABC):
    """One way to learn a stream of domains. Subclasses add a Config, recipes, phases and how to score an image."""

    name: ClassVar[str]
    summary: ClassVar[str]
    reference: ClassVar[str]
    Config: ClassVar[type[MethodConfig]]
    recipes: ClassVar[Mapping[str, Recipe]]
    constant_parts: ClassVar[frozenset[str]] = frozenset()
    """Parts that never change once written, so that a checkpoint need not look at them again."""

    def __init__(self, config: MethodConfig, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone
        self.rows = Rows()

    @classmethod
    def check(cls, backbone: Backbone) -> None:
        """Raise BackboneError, by name and reason, where the method cannot work on this backbone."""

    @abstractmethod
    def phases(self) -> Sequence[Phase]:
        """What a stage consists of, in order. The first phase adds the domain's block to ``rows``."""

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """Row scores ``[n, R]`` of the learned state."""

    def features(self, images: Tensor) -> Tensor:
        """What the classifier sees of images, ``[n, d]``: the backbone's features, unless the method has others."""
        features: Tensor = self.backbone(images)
        return features

    def outputs(self, images: Tensor) -> dict[str, Tensor]:
        """Row scores by name, from one pass: ``final`` and, for the record, earlier steps of the stage."""
        return {"final": self(images)}

    @abstractmethod
    def parts(self) -> Parts:
        """All that was learned, as named groups of tensors. Between two phases this is the whole truth."""

    @abstractmethod
    def load_parts(self, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Take over what ``parts`` gave; ``rows`` has been restored before."""

    def extra(self) -> dict[str, Any]:
        """What was learned and is no tensor, as JSON: references to exemplars, for instance."""
        return {}

    def load_extra(self, extra: Mapping[str, Any]) -> None:
        """Take over what ``extra`` gave. Called before ``load_parts``, after ``rows`` has been restored."""

    def end_stage(self) -> None:
        """Drop what only the evaluation of this stage needed."""

    def price(self) -> Price:
        """What the learned state costs at inference."""
        parameters = sum(p.numel() for p in self.parameters())
        return Price(parameters, sum(p.numel() for p in self.parameters() if p.requires_grad))

    def fold(self, rows: Tensor) -> Tensor:
        """From row scores ``[n, R]`` to class scores ``[n, C]`` in the order of ``rows.classes``."""
        return F.fold(rows, self.rows.row_class().to(rows.device), len(self.rows.classes))


class BackboneAndHead(Method):
    """A method whose whole state is one backbone and one classifier of its features."""

    head: GrowingHead

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.head(self.features(images))
        return scores

    def parts(self) -> Parts:
        return {"backbone": dict(self.backbone.state_dict()), "head": self.head.export()}

    def load_parts(self, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        self.backbone.load_state_dict(dict(parts["backbone"]))
        self.head.restore(parts["head"])
