"""How to run, as opposed to what to learn: devices, precision, workers, checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class EngineSettings(BaseModel):
    """Settings that must not change what is learned, except for rounding: of the precision, and of smaller images."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    accelerator: Literal["auto", "cpu", "cuda", "mps"] = Field("auto", description="where to compute")
    devices: int = Field(1, ge=1, description="processes on each node, one device each")
    nodes: int = Field(1, ge=1, description="machines; start the same command on each with torchrun")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto", description="auto: bf16 where a probe gains from it"
    )
    workers: int | Literal["auto"] = Field("auto", description="processes that read images; 0 reads in this one")
    cache: bool = Field(
        True, description="decode each image file once and augment whole batches; false is the plain pipeline"
    )
    cache_dir: Path | None = Field(None, description="where decoded images are kept, if not in the user's cache folder")
    cache_limit: float = Field(
        64.0, gt=0, description="GB that they may take; never more than half of what the disk could give"
    )
    eval_batch_size: int = Field(256, ge=1, description="images a step without gradients, over all devices")
    compile: bool = Field(False, description="compile the network with torch.compile")
    checkpoint: Literal["epoch", "phase", "stage"] = Field("epoch", description="how often to save")
    evaluate_phases: bool = Field(False, description="also measure the fine-tuned backbone: one more test pass a stage")
    evaluate_ahead: bool = Field(False, description="also test the next domain before it is learned (forward transfer)")
    embedding: int = Field(
        0, ge=0, description="test images of each class and domain whose features are written down in the end; 0: none"
    )
    embedding_classes: int = Field(10, ge=2, description="how many classes those are of, spread evenly over all")
    shared: Path | Literal[False] | None = Field(
        None,
        description="folder for what several runs need: features of the frozen backbone, the precision that a probe "
        "chose; `bench` gives its runs one, false keeps a run to itself",
    )
