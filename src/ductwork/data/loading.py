"""From an image set to batches, the same ones however many processes read them.

Three rules make a run repeatable, resumable and independent of how it is spread over processes:

* the order of the images in an epoch is a function of (seed, epoch);
* the augmentation of an image is a function of (seed, epoch, position of the image in its set): a 64-bit seed is
  derived for every image, and a transform draws from nothing else;
* a batch is cut from the order of all ranks, and each rank takes its slice of it.

Worker processes are handed (positions, seeds) instead of keeping generators of their own, so neither their number,
nor the way in which they were started, nor the batch at which an interrupted epoch was taken up again matters.

Fresh memory costs more than what is done with it: a page that is touched for the first time takes the system longer
than the arithmetic on its numbers. So workers write pixels as bytes into memory that is shared once and for all, and
the numbers that are made of them, four times as large, go into memory that comes back when a batch is no longer held.
"""

from __future__ import annotations

import math
import os
import random
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from ductwork.data import workers as processes
from ductwork.data.domain import ArraySource, ImageSet, IntArray
from ductwork.data.draws import ORDER, SeedArray, derive_seeds
from ductwork.errors import ConfigError, DataError, DuctworkError

Images = Tensor | Sequence[Tensor]


@runtime_checkable
class BatchTransform(Protocol):
    """A transform that prepares many images in one call, which is much cheaper than one call each.

    ``images`` are uint8 ``[3, H, W]`` of any sizes, as one tensor ``[n, 3, H, W]`` or a list. Result ``i`` must be a
    function of ``images[i]`` and ``seeds[i]`` alone, not of its neighbours in the batch.
    """

    def batch(self, images: Images, seeds: SeedArray) -> Tensor: ...


@runtime_checkable
class PixelTransform(BatchTransform, Protocol):
    """A batch transform in two steps: ``batch`` is ``finish`` of what ``pixels`` writes, and no more."""

    @property
    def size(self) -> int:
        """The side of what comes out."""
        ...

    def pixels(self, images: Images, seeds: SeedArray, out: Tensor) -> None:
        """All that is drawn or costs time, in a worker: into uint8 ``[n, 3, size, size]``."""
        ...

    def finish(self, pixels: Tensor, out: Tensor) -> Tensor:
        """The rest, where the batch is used: into float32 of the same shape, which is returned."""
        ...


@runtime_checkable
class BulkSource(Protocol):
    """A source that reads many images at once and says how many of them had to be decoded."""

    @property
    def missing(self) -> int:
        """Images that are decoded each time they are read."""
        ...

    def read_many(self, index: IntArray) -> tuple[Sequence[Tensor], int]: ...


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


class Loader:
    """Batches of an image set. ``batch_size`` counts the images of all ranks together.

    A batch that does not divide by ``world`` is cut into slices whose sizes differ by one at most. The last batch of
    an epoch may be smaller, and then a rank may get an empty slice: every rank sees the same number of batches, and no
    image is seen twice, so sums over ranks are exact. Empty slices have their proper shape ``[0, 3, S, S]``, so that a
    rank can still take part in a collective backward pass. ``drop_last`` leaves an incomplete last batch out, unless
    it is the only one.

    With ``workers=0`` everything happens in this process, on demand; otherwise that many processes read ahead and
    live until :meth:`close`. A loader runs one epoch at a time: beginning one ends the one before. Inputs are made on
    ``device`` where the transform allows it, so that bytes travel there and not numbers.
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
        device: torch.device | str = "cpu",
        start_method: str | None = None,
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size must be 1 or more, not {batch_size}")
        if workers < 0:
            raise ConfigError(f"workers must be 0 or more, not {workers}")
        if not 0 <= rank < world:
            raise ConfigError(f"rank must be between 0 and {world - 1}, not {rank}")
        self._targets = np.asarray(images.labels if targets is None else targets, dtype=np.int64)
        if self._targets.shape != (len(images),):
            raise DataError(f"{len(images)} images but targets of shape {list(self._targets.shape)}")
        self._transform = transform if isinstance(transform, BatchTransform) else PerImage(transform)
        self._images, self._batch_size, self._shuffle, self._drop_last = images, batch_size, shuffle, drop_last
        self.size = min(len(images), len(self) * batch_size)  #: images in an epoch, over all ranks
        self._seed, self._rank, self._world = seed, rank, world
        self._workers, self._start_method = workers, start_method
        self._device = torch.device(device)
        self._slots: Tensor | None = None
        self._here: _Reader | None = None
        self._pool: DataLoader[_Read | processes.Failure] | None = None
        self._plans, self._memory = _Plans(), _Memory()
        self._turn = 0
        self.decoded = 0  #: images that were decoded, or read from memory, for the batches handed out so far

    def __len__(self) -> int:
        """Batches in an epoch, the same on every rank."""
        whole, rest = divmod(len(self._images), self._batch_size)
        return whole + (1 if rest and not (self._drop_last and whole) else 0)

    @property
    def decodes(self) -> int:
        """Images that are decoded, or read from memory, in an epoch."""
        source = self._images.source
        return min(self.size, source.missing) if isinstance(source, BulkSource) else self.size

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
        order = np.arange(len(self._images))
        if self._shuffle:
            order = np.argsort(derive_seeds(self._seed, epoch, order, purpose=ORDER), kind="stable")
        for at in range(start * self._batch_size, len(self) * self._batch_size, self._batch_size):
            batch = order[at : at + self._batch_size]
            mine = np.array_split(batch, self._world)[self._rank]
            yield _Plan(mine, derive_seeds(self._seed, epoch, mine), len(batch), int(batch[0]))

    def _count(self, epoch: int, start: int, turn: int) -> Iterator[Batch]:
        plans = self._plan(epoch, start)
        reads = self._read_ahead(plans) if self._workers else self._read_here(plans)
        while True:
            if turn != self._turn:  # workers have one queue: two epochs would get each other's batches
                raise RuntimeError("this epoch was ended, by close() or by the beginning of another one")
            found = next(reads, None)
            if found is None:
                return
            plan, read = found
            self.decoded += read.decoded
            targets, index = torch.from_numpy(self._targets[plan.positions]), torch.from_numpy(plan.positions)
            yield Batch(self._finished(read, len(index)), targets, index, plan.total)

    def _finished(self, read: _Read, n: int) -> Tensor:
        if read.inputs is not None:
            return read.inputs.pin_memory() if self._device.type == "cuda" else read.inputs
        assert self._slots is not None and isinstance(self._transform, PixelTransform)
        pixels = self._slots[read.slot, :n]
        if self._device.type == "cpu":
            return self._transform.finish(pixels, self._memory.lend(pixels.shape))
        # a copy in between, since the slot is written again while the transfer is under way
        pixels = pixels.pin_memory() if self._device.type == "cuda" else pixels
        pixels = pixels.to(self._device, non_blocking=True)
        return self._transform.finish(pixels, torch.empty_like(pixels, dtype=torch.float32))

    def _read_here(self, plans: Iterator[_Plan]) -> Iterator[tuple[_Plan, _Read]]:
        if self._here is None:
            self._here = self._reader(1, shared=False)
        yield from ((plan, self._here.read(plan)) for plan in plans)

    def _read_ahead(self, plans: Iterator[_Plan]) -> Iterator[tuple[_Plan, _Read]]:
        if self._pool is None:
            # one more than are under way: the batch in hand has left its slot when the next one is called for
            reader = self._reader(processes.AHEAD * self._workers + 1, shared=True)
            self._pool = processes.pool(reader, self._plans, self._workers, keep=True, start_method=self._start_method)
            # Left to the garbage collector, queues may go before their pool, which then waits 5 s for every worker.
            self._stop = weakref.finalize(self, processes.stop, self._pool, os.getpid())
        self._plans.begin(plans, len(self._slots) if self._slots is not None else 1)
        try:
            for read in processes.results(self._pool, self._workers):
                if isinstance(read, processes.Failure):
                    raise read.error
                yield self._plans.sent.popleft(), read
        except processes.KilledError:
            self.close()
            raise

    def _reader(self, slots: int, *, shared: bool) -> _Reader:
        self._slots = None
        if isinstance(self._transform, PixelTransform):
            most = max(1, -(-min(self._batch_size, len(self._images)) // self._world))
            side = self._transform.size
            self._slots = torch.empty(slots, most, 3, side, side, dtype=torch.uint8)
            if shared:
                self._slots.untyped_storage().share_memory_()
        return _Reader(self._images, self._transform, self._slots)


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


class _Plan(NamedTuple):
    """What to read for one batch on one rank, and into which slot."""

    positions: IntArray
    seeds: SeedArray
    total: int
    first: int  # of the whole batch: an empty slice takes its shape from this image
    slot: int = 0


class _Read(NamedTuple):
    """A batch that was read: its inputs, or, where there are slots, the number of the one that holds its pixels."""

    inputs: Tensor | None
    slot: int
    decoded: int


class _Plans(Sampler[_Plan]):
    """Persistent workers keep their sampler, so the plans of the next epoch are put into this one."""

    def __init__(self) -> None:
        self.begin(iter(()), 1)

    def begin(self, plans: Iterator[_Plan], slots: int) -> None:
        self._plans, self._slots = plans, slots
        self.sent: deque[_Plan] = deque()  # results come back in this order

    def __iter__(self) -> Iterator[_Plan]:
        for number, plan in enumerate(self._plans):
            self.sent.append(plan)
            yield plan._replace(slot=number % self._slots)


class _Memory:
    """Memory that is lent as tensors and comes back when the last tensor that looks at it is gone."""

    _KEPT = 3  # the batch in use, the one before it that is being let go of, and one in reserve

    def __init__(self) -> None:
        self._free: list[npt.NDArray[np.float32]] = []

    def lend(self, shape: Sequence[int]) -> Tensor:
        """A tensor of that shape with anything in it."""
        n = math.prod(shape)
        fits = [i for i, flat in enumerate(self._free) if flat.size >= n]
        flat = self._free.pop(fits[0]) if fits else np.empty(n, np.float32)
        lent = flat[:n]  # a new object, which torch holds as long as a tensor over it is alive
        weakref.finalize(lent, _take_back, self._free, flat, self._KEPT).atexit = False
        return torch.from_numpy(lent).view(*shape)


def _take_back(free: list[npt.NDArray[np.float32]], flat: npt.NDArray[np.float32], most: int) -> None:
    free.insert(0, flat)  # what was used last is the warmest
    del free[most:]


@dataclass(frozen=True)
class _Reader(Dataset["_Read | processes.Failure"]):
    """Carries out plans; this is what a worker process has."""

    images: ImageSet
    transform: BatchTransform
    slots: Tensor | None

    def __getitem__(self, plan: _Plan) -> _Read | processes.Failure:
        try:
            return self.read(plan)
        except DuctworkError as error:
            return processes.Failure(error.with_traceback(None))

    def read(self, plan: _Plan) -> _Read:
        n = len(plan.positions)
        if self.slots is not None:
            decoded = 0
            if n:
                images, decoded = self._images(plan.positions)
                assert isinstance(self.transform, PixelTransform)
                self.transform.pixels(images, plan.seeds, self.slots[plan.slot, :n])
            return _Read(None, plan.slot, decoded)
        if not n:
            probe = self.read(plan._replace(positions=np.array([plan.first]), seeds=np.zeros(1, np.uint64)))
            assert probe.inputs is not None
            return _Read(probe.inputs[:0], 0, 0)
        images, decoded = self._images(plan.positions)
        return _Read(self.transform.batch(images, plan.seeds), 0, decoded)

    def _images(self, positions: IntArray) -> tuple[Images, int]:
        source, index = self.images.source, self.images.indices[positions]
        if isinstance(source, BulkSource):
            return source.read_many(index)
        if type(source) is ArraySource:  # one gather instead of n reads, which a subclass may have changed
            return torch.from_numpy(source.images[index]).permute(0, 3, 1, 2).contiguous(), len(index)
        return [self.images.read(position) for position in positions.tolist()], len(index)
