"""The processes of one run: how they find each other, what they tell each other, and how they end together.

``torchrun`` and ``engine/launch.py`` start the same program several times and put into the environment who is who.
Gradients go through Fabric's DDP; everything else is small or rare and goes through here, over the CPU.
"""

from __future__ import annotations

import atexit
import os
import socket
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import TypeVar
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from ductwork.data.slices import bounds
from ductwork.engine.settings import EngineSettings
from ductwork.errors import ConfigError, DuctworkError, RankError

T = TypeVar("T")
_FAILED = "failed"
_PATIENCE = 1.0  # seconds that the first rank gets to speak first, where several ranks fail at once
_COMING = 600.0  # seconds in which all ranks must have come; loading libraries from a network drive takes minutes
_GLANCE = 0.02  # seconds between two looks at who has come
_LOST = ("gloo", "connection closed", "connection reset", "broken pipe", "socket")


class Ranks:
    """This process among those of its run. Alone, every method does nothing and costs nothing."""

    def __init__(self, rank: int = 0, world: int = 1, store: Store | None = None) -> None:
        self.rank, self.world, self._store = rank, world, store

    @property
    def neighbours(self) -> int:
        """How many ranks there are on this machine."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", self.world)) if self.world > 1 else 1

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes, logs and prints."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, on the CPU; the same bits on each."""
        if self.world == 1:
            return tensor
        total = tensor.detach().to("cpu", copy=True).contiguous()
        dist.all_reduce(total)
        return total.to(tensor.device)

    def whole(self, part: Tensor, total: int) -> Tensor:
        """The slices that the ranks have of a batch of ``total``, put together, on every rank."""
        if self.world == 1:
            return part
        start, size = bounds(total, self.rank, self.world)
        whole = part.new_zeros(total, *part.shape[1:])
        whole[start : start + size] = part
        return self.sum(whole)

    def largest(self, number: int) -> int:
        """The largest of one number of each rank."""
        found = torch.tensor([number])
        if self.world > 1:
            dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return int(found)

    def tell(self, value: T) -> T:
        """What the first rank has, on all of them; ``value`` of the others does not matter."""
        if self.world == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    def wait(self) -> None:
        """Go on when all ranks are here."""
        self.largest(0)

    @contextmanager
    def together(self) -> Iterator[None]:
        """An error of the user's on one rank is raised on all of them. No rank may wait for another in here."""
        mine: DuctworkError | None = None
        try:
            yield
        except DuctworkError as error:
            mine = error
        if self.world == 1:
            if mine is not None:
                raise mine
            return
        found: list[str | None] = [None] * self.world
        dist.all_gather_object(found, None if mine is None else f"{mine}{self._place()}")
        for text in found:
            if text is not None:
                raise DuctworkError(text) from mine

    @contextmanager
    def one_voice(self) -> Iterator[None]:
        """Whatever ends the run, one rank says why; the others end in silence with the same exit code."""
        if self.world == 1:
            yield
            return
        try:
            yield
        except DuctworkError as error:
            self._speak_or_end()
            raise RankError(str(error) if self._place() in str(error) else f"{error}{self._place()}") from error
        except KeyboardInterrupt:
            self._claim()
            raise
        except Exception as error:
            if not _is_loss(error):
                self._claim()
                raise
            self._speak_or_end()
            raise RankError(
                "another process of this run ended without a word, or cannot be reached any more; nothing is lost, "
                "run the same command again to go on"
            ) from error

    def _speak_or_end(self) -> None:
        if not self.leads:
            time.sleep(_PATIENCE)
        if not self._claim():
            raise SystemExit(2)

    def _claim(self) -> bool:
        """Whether this rank is the first to fail. Where the first rank took the store with it, somebody was."""
        mine = f"rank {self.rank}"
        with suppress(RuntimeError):
            assert self._store is not None
            return bool(self._store.compare_set(_FAILED, "", mine).decode() == mine)
        return False

    def _place(self) -> str:
        return f" (process {self.rank + 1} of {self.world}, on {socket.gethostname()})" if self.rank else ""


def join(settings: EngineSettings) -> Ranks:
    """Find the other processes of this run, if there are any; the second call finds the same."""
    if started_as_rank():
        return _meet("cuda" if settings.accelerator in ("auto", "cuda") and torch.cuda.is_available() else "cpu")
    if settings.devices * settings.nodes > 1:
        raise ConfigError(
            f"a Python program that uses {settings.devices} devices on {settings.nodes} nodes is started by torchrun: "
            f"torchrun --nnodes {settings.nodes} --nproc_per_node {settings.devices} program.py"
        )
    return Ranks()


def started_as_rank() -> bool:
    """Whether torchrun, or ``launch``, started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


@cache
def _meet(kind: str) -> Ranks:
    store, rank, world = next(iter(rendezvous("env://")))
    store = PrefixStore(_meeting(store, rank, world), store)
    warnings.filterwarnings("ignore", message="Grad strides do not match bucket view")  # a hint on speed, no error
    # small things travel over the CPU also where gradients travel between GPUs
    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world)
    atexit.register(dist.destroy_process_group)
    return Ranks(rank, world, store)


def _meeting(store: Store, rank: int, world: int) -> str:
    """A name that these ranks agree on, and no ranks before them did.

    When torchrun starts ranks again it keeps its store, with the addresses of those that are gone. How often it did so
    may differ from node to node, so nothing that a rank finds there can be believed but an answer to its own word.
    """
    mine = uuid4().hex
    if rank:
        store.set(f"ductwork/hello/{rank}", mine)
        _wait_until(lambda: store.check([f"ductwork/answer/{mine}"]), world)
        name = f"ductwork/{store.get(f'ductwork/answer/{mine}').decode()}"
        store.set(f"{name}/{rank}", "here")
        return name

    def all_here() -> bool:
        for other in range(1, world):
            if store.check([f"ductwork/hello/{other}"]):
                store.set(f"ductwork/answer/{store.get(f'ductwork/hello/{other}').decode()}", mine)
        return store.check([f"ductwork/{mine}/{other}" for other in range(1, world)])

    _wait_until(all_here, world)
    return f"ductwork/{mine}"


def _wait_until(met: Callable[[], bool], world: int) -> None:
    deadline = time.monotonic() + _COMING
    while not met():
        if time.monotonic() > deadline:
            raise DuctworkError(f"not all {world} processes of this run have come; start it again on every node")
        time.sleep(_GLANCE)


def _is_loss(error: Exception) -> bool:
    """Whether an error says that another rank cannot be reached. Gloo has no type of its own for it."""
    text = str(error).lower()
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and any(s in text for s in _LOST))
