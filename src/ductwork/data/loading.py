"""From an image set to batches, the same ones however many processes read them.

Three rules make a run repeatable, resumable and independent of how it is spread over processes:

* the order of the images in an epoch is a function of (seed, epoch);
* the augmentation of an image is a function of (seed, epoch, position of the image in its set): a 64-bit seed is
  derived for every image, and a transform draws from nothing else;
* a batch is cut from the order of all ranks, and each rank takes its slice of it.

Worker processes are handed (positions, seeds) instead of keeping generators of their own, so neither their number,
nor the way in which they were started, nor the batch at which an interrupted epoch was taken up again matters.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from ductwork.data.domain import ArraySource, ImageSet, IntArray
from ductwork.errors import ConfigError, DataError, DuctworkError

SeedArray = npt.NDArray[np.uint64]
Images = Tensor | Sequence[Tensor]

_ORDER, _AUGMENTATION = 1, 2  # what a derived seed is for; a new use gets a new number
_WORD = (1 << 64) - 1


@runtime_checkable
class BatchTransform(Protocol):
    """A transform that prepares many images in one call, which is much cheaper than one call each.

    ``images`` are uint8 ``[3, H, W]`` of any sizes, as one tensor ``[n, 3, H, W]`` or a list. Result ``i`` must be a
    function of ``images[i]`` and ``seeds[i]`` alone, not of its neighbours in the batch.
    """

    def batch(self, images: Images, seeds: SeedArray) -> Tensor: ...


Transform = BatchTransform | Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Batch:
    """Images that are ready for a backbone: one rank's slice of a batch.

    ``total`` counts the images of the batch over all ranks. A loss that is summed and divided by ``total`` (times
    ``world``, if gradients are then averaged over ranks) equals that of a single process, whatever the slices are.
    """

    inputs: Tensor  #: float32 ``[n, 3, S, S]``
    targets: Tensor  #: int64 ``[n]``
    index: Tensor  #: int64 ``[n]``, positions in the image set
    total: int

    def __len__(self) -> int:
        return len(self.targets)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
        moved = [t.to(device, non_blocking=non_blocking) for t in (self.inputs, self.targets, self.index)]
        return Batch(moved[0], moved[1], moved[2], self.total)

    def pin_memory(self) -> Batch:
        return Batch(self.inputs.pin_memory(), self.targets.pin_memory(), self.index.pin_memory(), self.total)


class Loader:
    """Batches of an image set. ``batch_size`` counts the images of all ranks together.

    A batch that does not divide by ``world`` is cut into slices whose sizes differ by one at most. The last batch of
    an epoch may be smaller, and then a rank may get an empty slice: every rank sees the same number of batches, and no
    image is seen twice, so sums over ranks are exact. Empty slices have their proper shape ``[0, 3, S, S]``, so that a
    rank can still take part in a collective backward pass. ``drop_last`` leaves an incomplete last batch out, unless
    it is the only one.

    With ``workers=0`` everything happens in this process, on demand; otherwise that many processes read ahead and
    live until :meth:`close`. A loader runs one epoch at a time: beginning one ends the one before.
    """

    def __init__(
        self,
        images: ImageSet,
        transform: Transform,
        *,
        batch_size: int,
        targets: npt.NDArray[np.integer] | None = None,
        workers: int = 0,
        seed: int = 0,
        shuffle: bool = False,
        rank: int = 0,
        world: int = 1,
        drop_last: bool = False,
        pin_memory: bool = False,
        start_method: str | None = None,
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size must be 1 or more, not {batch_size}")
        if workers < 0:
            raise ConfigError(f"workers must be 0 or more, not {workers}")
        if not 0 <= rank < world:
            raise ConfigError(f"rank must be between 0 and {world - 1}, not {rank}")
        labels = np.asarray(images.labels if targets is None else targets, dtype=np.int64)
        if labels.shape != (len(images),):
            raise DataError(f"{len(images)} images but targets of shape {list(labels.shape)}")
        batched = transform if isinstance(transform, BatchTransform) else PerImage(transform)
        self._reader = _Reader(images, batched, labels)
        self._batch_size, self._shuffle, self._drop_last = batch_size, shuffle, drop_last
        self._images = len(images)
        self.size = min(self._images, len(self) * batch_size)  #: images in an epoch, over all ranks
        self._seed, self._rank, self._world = seed, rank, world
        self._workers, self._start_method = workers, start_method
        self._pin = pin_memory and torch.cuda.is_available()
        self._pool: DataLoader[Batch | _Failure] | None = None
        self._plans = _Plans()
        self._turn = 0
        self.decoded = 0  #: images in the batches handed out so far

    def __len__(self) -> int:
        """Batches in an epoch, the same on every rank."""
        whole, rest = divmod(self._images, self._batch_size)
        return whole + (1 if rest and not (self._drop_last and whole) else 0)

    def epoch(self, number: int = 0, *, start: int = 0) -> Iterator[Batch]:
        """The batches of epoch ``number`` from batch ``start`` on; nothing is read for the batches before it."""
        self._turn += 1
        return self._count(number, start, self._turn)

    def close(self) -> None:
        """Stop the worker processes, if there are any; the next epoch starts new ones."""
        self._turn += 1
        if self._pool is not None:
            self._stop()
            self._pool = None

    def _plan(self, epoch: int, start: int) -> Iterator[_Plan]:
        order = np.arange(self._images)
        if self._shuffle:
            order = np.argsort(derive_seeds(self._seed, epoch, order, purpose=_ORDER), kind="stable")
        for at in range(start * self._batch_size, len(self) * self._batch_size, self._batch_size):
            batch = order[at : at + self._batch_size]
            mine = np.array_split(batch, self._world)[self._rank]
            yield _Plan(mine, derive_seeds(self._seed, epoch, mine), len(batch), int(batch[0]))

    def _count(self, epoch: int, start: int, turn: int) -> Iterator[Batch]:
        plans = self._plan(epoch, start)
        batches = self._read_ahead(plans) if self._workers else self._read_here(plans)
        while True:
            if turn != self._turn:  # workers have one queue: two epochs would get each other's batches
                raise RuntimeError("this epoch was ended, by close() or by the beginning of another one")
            batch = next(batches, None)
            if batch is None:
                return
            self.decoded += len(batch)
            yield batch

    def _read_here(self, plans: Iterator[_Plan]) -> Iterator[Batch]:
        for plan in plans:
            batch = self._reader.read(plan)
            yield batch.pin_memory() if self._pin else batch

    def _read_ahead(self, plans: Iterator[_Plan]) -> Iterator[Batch]:
        if self._pool is None:
            self._pool = self._start_workers()
        self._plans.now = plans
        try:
            with _interrupts_held():
                batches = iter(self._pool)  # starts the workers, or tells them that an epoch begins
            for batch in batches:
                if isinstance(batch, _Failure):
                    raise batch.error
                yield batch
        except RuntimeError as error:
            if not str(error).startswith("DataLoader worker"):
                raise
            self.close()
            reason = "a process that reads images was killed, probably because memory ran out"
            raise DuctworkError(f"{reason}: use fewer workers than {self._workers} or a smaller batch") from error

    def _start_workers(self) -> DataLoader[Batch | _Failure]:
        pool: DataLoader[Batch | _Failure] = DataLoader(
            self._reader,
            batch_size=None,  # the sampler yields whole batches, the reader returns them
            sampler=self._plans,
            num_workers=self._workers,
            collate_fn=_as_it_is,
            pin_memory=self._pin,
            persistent_workers=True,
            multiprocessing_context=self._start_method,
            worker_init_fn=_begin_worker,
            generator=torch.Generator(),  # or it would draw from the global one, which dropout uses
        )
        # Left to the garbage collector, the queues may go before their pool, which then waits 5 s for every worker.
        self._stop = weakref.finalize(self, _stop_workers, pool, os.getpid())
        return pool


class PerImage:
    """Makes a batch transform of any function of one image, by seeding what it may draw from.

    These are the global generators of torch, NumPy and Python, which are put back as they were. ``torch_only`` leaves
    the last two alone; it is right for everything in torchvision and several times cheaper.
    """

    def __init__(self, transform: Callable[[Tensor], Tensor], *, torch_only: bool = False) -> None:
        self.transform, self.torch_only = transform, torch_only

    def batch(self, images: Images, seeds: SeedArray) -> Tensor:
        # not torch.manual_seed: that one visits every accelerator, too
        seed_torch, transform, results = torch.default_generator.manual_seed, self.transform, []
        with _generators_kept(torch_only=self.torch_only):
            for image, seed in zip(images, seeds.tolist(), strict=True):
                seed_torch(seed)
                if not self.torch_only:
                    np.random.seed(seed >> 32)
                    random.seed(seed)
                results.append(transform(image))
        shapes = sorted({tuple(result.shape) for result in results})
        if len(shapes) > 1:
            raise ConfigError(f"the transform gives images of shapes {shapes[0]} and {shapes[1]}: end it with a crop")
        return torch.stack(results)


@contextmanager
def _generators_kept(*, torch_only: bool) -> Iterator[None]:
    """Put the global generators back when done: the training loop draws its dropout from them."""
    state = torch.get_rng_state()
    others = None if torch_only else (random.getstate(), np.random.get_state())
    try:
        yield
    finally:
        torch.set_rng_state(state)
        if others:
            random.setstate(others[0])
            np.random.set_state(others[1])


def derive_seeds(seed: int, epoch: int, positions: IntArray, *, purpose: int = _AUGMENTATION) -> SeedArray:
    """One 64-bit seed for every position, different for every (seed, epoch, purpose, position)."""
    key = np.zeros(1, np.uint64)
    for part in (seed, purpose, epoch):
        key = _splitmix64(key ^ np.uint64(part & _WORD))
    return _splitmix64(key ^ positions.astype(np.uint64))


def uniform(seeds: SeedArray, count: int) -> npt.NDArray[np.float64]:
    """``count`` numbers in [0, 1) from every seed, ``[n, count]``: draws for transforms that work on whole batches."""
    streams = seeds[:, None] + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (_splitmix64(streams) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _splitmix64(x: SeedArray) -> SeedArray:
    """The output function of SplitMix64 (Steele, Lea and Flood, 2014): a bijection with good avalanche."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class _Plan(NamedTuple):
    """What to read for one batch on one rank."""

    positions: IntArray
    seeds: SeedArray
    total: int
    first: int  # of the whole batch: an empty slice takes its shape from this image


@dataclass(frozen=True)
class _Failure:
    """An error of the user's, carried out of a worker as a value: torch would bury its line in a traceback."""

    error: DuctworkError


class _Plans(Sampler[_Plan]):
    """Persistent workers keep their sampler, so the plans of the next epoch are put into this one."""

    def __init__(self) -> None:
        self.now: Iterator[_Plan] = iter(())

    def __iter__(self) -> Iterator[_Plan]:
        return self.now


@dataclass(frozen=True)
class _Reader(Dataset["Batch | _Failure"]):
    """Carries out plans; this is what a worker process has."""

    images: ImageSet
    transform: BatchTransform
    targets: IntArray

    def __getitem__(self, plan: _Plan) -> Batch | _Failure:
        try:
            return self.read(plan)
        except DuctworkError as error:
            return _Failure(error.with_traceback(None))

    def read(self, plan: _Plan) -> Batch:
        if not len(plan.positions):
            probe = self.read(plan._replace(positions=np.array([plan.first]), seeds=np.zeros(1, np.uint64)))
            return replace(probe, inputs=probe.inputs[:0], targets=probe.targets[:0], index=probe.index[:0])
        inputs = self.transform.batch(self._pixels(plan.positions), plan.seeds)
        return Batch(
            inputs, torch.from_numpy(self.targets[plan.positions]), torch.from_numpy(plan.positions), plan.total
        )

    def _pixels(self, index: IntArray) -> Images:
        source = self.images.source
        if type(source) is ArraySource:  # one gather instead of n reads, which a subclass may have changed
            return torch.from_numpy(source.images[self.images.indices[index]]).permute(0, 3, 1, 2).contiguous()
        return [self.images.read(position) for position in index.tolist()]


def _as_it_is(batch: Any) -> Any:
    return batch


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C waits meanwhile. Processes that start now never hear of it: only this one shall answer it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin_worker(worker: int) -> None:
    """Where signals cannot be held back, ignore Ctrl-C at least from now on.

    What a forked worker inherits is frozen: collecting it would copy its memory, and might stop pools of the parent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.excepthook = _unless_nobody_listens
    gc.freeze()


def _unless_nobody_listens(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A batch that is handed over while the reading process is being interrupted is no news to anybody."""
    if not issubclass(kind, ConnectionError | EOFError):
        sys.__excepthook__(kind, error, trace)


def _stop_workers(pool: DataLoader[Any], owner: int) -> None:
    iterator = getattr(pool, "_iterator", None)  # torch offers no public way to end persistent workers
    if iterator is not None and os.getpid() == owner:
        iterator._shutdown_workers()
