"""Where the work is done: devices and precision through Lightning Fabric, and the count of the work."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning_fabric.strategies.ddp import DDPStrategy
from torch import Tensor

from ductwork.backbones.base import Backbone
from ductwork.data.cache import ImageCache
from ductwork.data.prepare import cache_folder
from ductwork.engine.precision import FABRIC, choose
from ductwork.engine.progress import Progress, Silent
from ductwork.engine.ranks import Ranks, join
from ductwork.engine.settings import EngineSettings
from ductwork.errors import ConfigError


@dataclass
class Work:
    """Images that went through the network, by purpose, images decoded and bytes written."""

    frozen: int = 0
    reused: int = 0
    train: int = 0
    test: int = 0
    decoded: int = 0
    bytes_written: int = 0

    def add(self, **counts: int) -> None:
        for name, count in counts.items():
            setattr(self, name, getattr(self, name) + count)

    def to_json(self) -> dict[str, int]:
        return asdict(self)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in fields(self))


class Session:
    """A set of processes that compute together, from one process on a CPU to many nodes of GPUs."""

    def __init__(
        self,
        settings: EngineSettings | None = None,
        progress: Progress | None = None,
        backbone: Backbone | None = None,
    ) -> None:
        """``backbone`` is what a probe of ``precision=auto`` trains for a moment."""
        self.settings = settings or EngineSettings()
        kind = _device_kind(self.settings.accelerator)
        self.ranks = join(self.settings)
        # a probe may decide, and processes that are equally fast may still measure differently
        self.precision, self.precision_reason = self.ranks.tell(
            choose(self.settings.precision, kind, self.settings.shared, backbone)
        )
        if self.precision == "fp16" and kind == "cpu":
            raise ConfigError("precision fp16 needs a GPU; use bf16 or fp32 on a CPU")
        self.fabric = _quiet_fabric(self.ranks, kind, FABRIC[self.precision])
        self.fabric.launch()
        self.progress: Progress = progress if progress is not None and self.ranks.leads else Silent()
        self.cache = _open_cache(self.settings)
        self.work = Work()

    @property
    def device(self) -> torch.device:
        return self.fabric.device

    @property
    def rank(self) -> int:
        return self.ranks.rank

    @property
    def world(self) -> int:
        return self.ranks.world

    @property
    def workers(self) -> int:
        """Processes that read images for one rank."""
        if self.settings.workers != "auto":
            return self.settings.workers
        return max(0, min(8, (_cores() // self.ranks.neighbours) - 1))

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks; the same bits on each."""
        return self.ranks.sum(tensor)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """No gradients, in the session's precision."""
        with torch.no_grad(), self.fabric.autocast():
            yield

    def compiled(self, model: torch.nn.Module) -> torch.nn.Module:
        return torch.compile(model) if self.settings.compile else model  # type: ignore[return-value]

    def describe(self) -> str:
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else _processor()
        return f"{self.world} x {name}" if self.world > 1 else name


def _open_cache(settings: EngineSettings) -> ImageCache | None:
    """The cache of decoded images, or None where every image shall be decoded each time it is read."""
    if not settings.cache:
        return None
    if settings.cache_dir is not None:
        try:
            settings.cache_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = error.strerror or error
            raise ConfigError(f"engine.cache_dir {str(settings.cache_dir)!r} cannot be made ({reason})") from None
    folder = settings.cache_dir or cache_folder() / "images"
    return ImageCache(folder.absolute(), int(settings.cache_limit * 1e9))


def _device_kind(accelerator: str) -> str:
    available: dict[str, Callable[[], bool]] = {"cuda": torch.cuda.is_available, "mps": torch.backends.mps.is_available}
    if accelerator in available:
        if not available[accelerator]():
            raise ConfigError(f"accelerator {accelerator!r} is not available here; use accelerator=cpu or leave it out")
        return accelerator
    if accelerator == "cpu":
        return "cpu"
    return next((kind for kind, there in available.items() if there()), "cpu")


def _quiet_fabric(ranks: Ranks, kind: str, precision: str) -> Fabric:
    with warnings.catch_warnings():
        # hints on what else could be installed, and what the run's record says anyway, are no news to the user
        warnings.simplefilter("ignore")
        logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
        spread = ranks.world > 1
        return Fabric(
            accelerator=kind,
            devices=ranks.neighbours,
            num_nodes=ranks.world // ranks.neighbours,
            # A stage may leave parameters out, such as the rows of other blocks. Buffers are the same everywhere: the
            # only ones that training changes are statistics, and these are of the whole batch.
            strategy=DDPStrategy(find_unused_parameters=True, broadcast_buffers=False) if spread else "auto",
            precision=precision,  # type: ignore[arg-type]
            # said, because Fabric would take a job of a cluster's scheduler for one that wants to be spread
            plugins=[TorchElasticEnvironment() if spread else LightningEnvironment()],
        )


def _cores() -> int:
    affinity: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else (os.cpu_count() or 1)


def _processor() -> str:
    if sys.platform == "linux":
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            for line in info:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    import platform

    return platform.processor() or platform.machine()
