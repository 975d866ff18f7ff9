"""``result.json`` and ``metrics.jsonl``: the contract between runs, reports and outside checks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ductwork.errors import CheckpointError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

RESULT_FILE = "result.json"
METRICS_FILE = "metrics.jsonl"
EMBEDDING_FILE = "embedding.safetensors"
FORMAT = 1


class _Record(BaseModel):
    # Later versions may add fields: a reader keeps what it does not know and shows what it does.
    model_config = ConfigDict(extra="allow", frozen=True)


class TransportRecord(_Record):
    """How the rows of one earlier block were carried along."""

    cost: float
    entropy: float
    marginal_error: float = 0.0
    plan: list[list[float]] | None = None
    from_classes: list[str] | None = None
    to_classes: list[str] | None = None


class Work(_Record):
    """Images that went through the network, by purpose, images decoded and bytes written, in one stage.

    ``reused`` counts images whose features another run had computed already: no pass was made for them.
    """

    frozen: int = 0
    reused: int = 0
    train: int = 0
    test: int = 0
    decoded: int = 0
    bytes_written: int = 0


class StageRecord(_Record):
    """What one domain did to the model."""

    domain: str
    accuracy: dict[str, float]
    A_b: float
    n_test: dict[str, int]
    n_train: int = 0
    classes: int = 0
    after: dict[str, float] = Field(default_factory=dict)
    similarity: float | None = None
    task_vector_norm: float | None = None
    task_vector_cosines: dict[str, float] = Field(default_factory=dict)
    transport: dict[str, TransportRecord] = Field(default_factory=dict)
    seconds: dict[str, float] = Field(default_factory=dict)
    work: Work = Field(default_factory=Work)


class BackboneRecord(_Record):
    name: str
    sha256: str
    parameters: int = 0


class DataRecord(_Record):
    fingerprint: str
    classes: int = 0


class Price(_Record):
    """What a method costs its user once it is trained."""

    parameters: int = 0
    trainable_parameters: int = 0
    state_bytes: int = 0
    inference_passes: float = 1.0


class EmbeddingRecord(_Record):
    """The features in ``embedding.safetensors``: what they cost, which is no part of the run's time and work."""

    images: int
    classes: int
    seconds: float = 0.0
    work: Work = Field(default_factory=Work)


class RunResult(_Record):
    """One method on one stream in one order with one seed."""

    format: int = FORMAT
    method: str
    recipe: str = "default"
    params: dict[str, Any] = Field(default_factory=dict)
    stream: str
    order: list[str]
    seed: int
    backbone: BackboneRecord
    data: DataRecord
    stages: list[StageRecord] = Field(default_factory=list)
    A_bar: float | None = None
    A_B: float | None = None
    forgetting: float | None = None
    forgetting_chaudhry: float | None = None
    bwt: float | None = None
    fwt: float | None = None
    price: Price = Field(default_factory=Price)
    precision: str = "fp32"
    device: str = "cpu"
    processes: int = 1
    versions: dict[str, str] = Field(default_factory=dict)
    seconds: float = 0.0
    peak_memory_bytes: int = 0
    embedding: EmbeddingRecord | None = None
    status: Literal["running", "done", "failed", "not-applicable"] = "running"
    reason: str | None = None


class EpochRecord(_Record):
    """One line of ``metrics.jsonl``: an epoch of training, or a phase that has none (``epoch`` 0)."""

    stage: int
    domain: str
    phase: str
    epoch: int = 0
    seconds: float = 0.0
    loss: float | None = None
    accuracy: float | None = None
    lr: dict[str, float] = Field(default_factory=dict)


def read_result(run: Path) -> RunResult:
    """The result in a run folder (or a ``result.json`` itself)."""
    path = run / RESULT_FILE if run.is_dir() else run
    try:
        return RunResult.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{run} holds no {RESULT_FILE}: is it the folder of a run?") from None
    except (ValidationError, UnicodeDecodeError) as error:
        first = str(error).splitlines()[0]
        raise CheckpointError(f"{path} is not a result that this version can read: {first}") from None


def is_done(run: Path) -> bool:
    """Whether a folder holds a run that has ended well."""
    return (run / RESULT_FILE).exists() and read_result(run).status == "done"


def read_metrics(run: Path) -> Iterator[EpochRecord]:
    """The lines of ``metrics.jsonl``; a last line that was cut off by a crash is left out."""
    path = run / METRICS_FILE
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield EpochRecord.model_validate(json.loads(line))
        except (ValueError, ValidationError):
            return


@dataclass(frozen=True)
class Embedding:
    """Features of some test images before and after a run.

    ``labels`` and what the classifiers ``said`` are places in ``classes``, ``domain_of`` places in ``domains``: int64
    ``[n]``. ``before`` and ``after`` are float32 ``[n, d]``, with a ``d`` of their own.
    """

    classes: tuple[str, ...]
    domains: tuple[str, ...]
    labels: npt.NDArray[np.int64]
    domain_of: npt.NDArray[np.int64]
    before: npt.NDArray[np.float32]
    after: npt.NDArray[np.float32]
    said_before: npt.NDArray[np.int64]
    said_after: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def to_bytes(self) -> bytes:
        """As a safetensors file; names of classes and domains are its metadata."""
        import numpy as np
        from safetensors.numpy import save

        names = {"classes": json.dumps(self.classes), "domains": json.dumps(self.domains)}
        # The library writes the memory of an array as it lies, whatever its strides say.
        return save({name: np.ascontiguousarray(getattr(self, name)) for name in _ARRAYS}, metadata=names)


_ARRAYS = ("labels", "domain_of", "before", "after", "said_before", "said_after")


def read_embedding(run: Path) -> Embedding | None:
    """The features that a run wrote down; None if it was not asked to, CheckpointError if they cannot be read."""
    from safetensors import SafetensorError, safe_open

    path = run / EMBEDDING_FILE
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            classes, domains = (tuple(json.loads((file.metadata() or {})[key])) for key in ("classes", "domains"))
            return Embedding(classes, domains, *(file.get_tensor(name) for name in _ARRAYS))
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path} does not hold the features of a run: {error}") from None
