"""Decode once: images as uint8 pixels of a sensible size in the user's cache folder, shared by all runs.

What a reader gets does not depend on what the cache holds. An image that is not there, because the disk is full or
the folder cannot be written, is decoded and made smaller in the same way each time it is read, to the same bits.

An image is found again by evidence of its content, such as its path, size and times: see ``evidence`` of a source.
Sources without that, like arrays, are not cached.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import PIL
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from ductwork.data import workers as processes
from ductwork.data.domain import ConcatSource, ImageSet, ImageSource, IntArray
from ductwork.data.shards import Found, Key, Keys, Pixels, Store, key_of, write_shard
from ductwork.errors import DataError

_CHUNK = 128  # images in a shard: what a process builds in one go, and loses when it is killed
_FORMAT = 1


@runtime_checkable
class Evidence(Protocol):
    """A source of images that can be found again."""

    def evidence(self, index: int) -> str:
        """Tells the image from every other one, and from what it was before it was changed. Cheap: nothing is read."""
        ...


class CachedSource:
    """Images of a set at most so large, from the cache where they are there. Pixels are views of the memory map."""

    def __init__(self, images: ImageSet, side: int, storable: npt.NDArray[np.bool_], found: Found) -> None:
        self._images, self._side, self._storable, self._found = images, side, storable, found
        self._fresh()

    def _fresh(self) -> None:
        self._maps: dict[int, Tensor | None] = {}
        self._trusted = np.zeros(len(self._images), bool)

    def __getstate__(self) -> dict[str, Any]:
        # a process maps and checks for itself
        return {key: value for key, value in vars(self).items() if key not in ("_maps", "_trusted")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._fresh()

    def __len__(self) -> int:
        return len(self._images)

    @property
    def missing(self) -> int:
        """Images that are decoded each time they are read."""
        return int((self._found.shard < 0).sum())

    def name(self, index: int) -> str:
        return self._images.name(index)

    def signature(self, index: int) -> str:
        return self._images.source.signature(int(self._images.indices[index]))

    def read(self, index: int) -> Tensor:
        return self.read_many(np.array([index]))[0][0]

    def read_many(self, index: IntArray) -> tuple[list[Tensor], int]:
        """The images, and how many of them had to be decoded."""
        found = [self._look_up(i) for i in index.tolist()]
        return (
            [self._decode(i) if image is None else image for i, image in zip(index.tolist(), found, strict=True)],
            sum(image is None for image in found),
        )

    def _decode(self, index: int) -> Tensor:
        image = self._images.read(index)
        return torch.from_numpy(shrunk(image, self._side)).permute(2, 0, 1) if self._storable[index] else image

    def _look_up(self, index: int) -> Tensor | None:
        number = int(self._found.shard[index])
        pages = self._map(number) if number >= 0 else None
        if pages is None:
            return None
        entry = self._found.entries[index]
        start, height, width = int(entry["offset"]), int(entry["height"]), int(entry["width"])
        pixels = pages[start : start + 3 * height * width]
        if not self._trusted[index]:
            if zlib.crc32(pixels.numpy().data) != entry["checksum"]:
                self._distrust(number)
                return None
            self._trusted[index] = True
        return pixels.view(height, width, 3).permute(2, 0, 1)

    def _map(self, number: int) -> Tensor | None:
        if number not in self._maps:
            path = self._found.shards[number]
            try:  # no file stays open: there may be more shards than a process may have open files
                self._maps[number] = torch.from_file(path, shared=False, size=os.path.getsize(path), dtype=torch.uint8)
            except (OSError, RuntimeError):  # it was removed to make room
                self._maps[number] = None
        return self._maps[number]

    def _distrust(self, number: int) -> None:
        """A shard that holds one wrong image goes: the next run decodes its images again."""
        self._maps[number] = None
        with suppress(OSError):  # it may be somebody else's to remove
            os.unlink(self._found.shards[number])


def shrunk(image: Tensor, side: int) -> Pixels:
    """``[3, H, W]`` as ``[h, w, 3]`` whose shorter side is ``side``; smaller images stay as they are."""
    pixels: Pixels = image.permute(1, 2, 0).numpy()
    height, width = pixels.shape[:2]
    short = min(height, width)
    if short <= side:
        return np.ascontiguousarray(pixels)
    # Pillow, since its bits are the same on every processor
    to = (max(side, round(width * side / short)), max(side, round(height * side / short)))
    return np.array(Image.fromarray(pixels).resize(to, Image.Resampling.BICUBIC))


@dataclass(frozen=True)
class Watcher:
    """Who is told about the building of a cache: how many images there are, how many more are done, what is wrong."""

    begin: Callable[[int], object] = lambda images: None
    advance: Callable[[int], object] = lambda images: None
    say: Callable[[str], object] = lambda message: None


class ImageCache:
    """The cache in a folder, which may take ``limit`` bytes and never more than half of what the disk could give."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self._limit = folder, limit
        self._stores: dict[int, Store] = {}
        self._keys: WeakKeyDictionary[ImageSource, dict[int, Key]] = WeakKeyDictionary()

    def cached(
        self, images: ImageSet, side: int, *, workers: int = 0, watcher: Watcher | None = None
    ) -> tuple[ImageSet, int]:
        """The same images, read from the cache, and how many had to be decoded for that.

        Images whose shorter side is above ``side`` come smaller. ``workers`` processes do what there is to do; other
        processes that want the same images share the work.
        """
        keys, storable = self._all_keys(images)
        if not storable.any():
            return images, 0
        store = self._store(side)
        store.refresh()
        found = store.find(keys)
        since = time.time()
        _use(found)
        decoded = 0
        missing = storable & (found.shard < 0)
        if missing.any():
            builder = _Builder(images, keys, side, store, since)
            decoded = _build(builder, _tasks(keys, missing), workers, watcher or Watcher())
            store.refresh()
            found = store.find(keys)
        source = CachedSource(images, side, storable, found)
        return replace(images, source=source, indices=np.arange(len(images))), decoded

    def _store(self, side: int) -> Store:
        if side not in self._stores:
            # another version of the decoder may give other pixels
            settings = blake2b(f"{_FORMAT} {PIL.__version__}".encode(), digest_size=4).hexdigest()
            self._stores[side] = Store(self.folder / f"{side}px-{settings}", self._limit)
        return self._stores[side]

    def _all_keys(self, images: ImageSet) -> tuple[Keys, npt.NDArray[np.bool_]]:
        keys, storable = np.zeros((len(images), 2), np.uint64), np.zeros(len(images), bool)
        for position, index in enumerate(images.indices.tolist()):
            key = self._key(images.source, index)
            if key is not None:
                keys[position], storable[position] = key, True
        return keys, storable

    def _key(self, source: ImageSource, index: int) -> Key | None:
        if isinstance(source, ConcatSource):
            return self._key(*source.locate(index))
        if not isinstance(source, Evidence):
            return None
        known = self._keys.setdefault(source, {})
        if index not in known:
            try:
                known[index] = key_of(source.evidence(index))
            except DataError:  # whoever reads the image will hear of it
                return None
        return known[index]


def _use(found: Found) -> None:
    for path in found.shards:
        with suppress(OSError):  # a folder of somebody else's, or a shard that is just being removed
            os.utime(path)


@dataclass(frozen=True)
class _Task:
    """A shard to be built: its name, which its keys decide, and the positions of its images in their set."""

    name: str
    positions: IntArray


def _tasks(keys: Keys, missing: npt.NDArray[np.bool_]) -> list[_Task]:
    """Cut by position and not by what is missing, so that processes that start at different times agree."""
    chunks = (np.arange(start, min(start + _CHUNK, len(keys))) for start in range(0, len(keys), _CHUNK))
    wanted = (chunk[missing[chunk]] for chunk in chunks)
    return [_Task(blake2b(keys[part].tobytes(), digest_size=16).hexdigest(), part) for part in wanted if len(part)]


@dataclass(frozen=True)
class _Outcome:
    decoded: int = 0
    busy: bool = False  # somebody else is building it
    refused: str = ""  # why nothing can be stored


@dataclass(frozen=True)
class _Builder(Dataset[_Outcome]):
    """Builds shards; this is what a worker process has."""

    images: ImageSet
    keys: Keys
    side: int
    store: Store
    since: float

    def __getitem__(self, task: _Task) -> _Outcome:
        try:
            with self.store.building(task.name) as part:
                if part is None:
                    return _Outcome(busy=True)
                if self.store.has(task.name):
                    return _Outcome()
                decoded = write_shard(part, self._pixels(task.positions))
                if self.store.add(part, task.name, since=self.since):
                    return _Outcome(decoded)
                return _Outcome(decoded, refused="it is full")
        except (OSError, NotImplementedError) as error:  # some network disks know no locks
            return _Outcome(refused=getattr(error, "strerror", None) or str(error))

    def _pixels(self, positions: IntArray) -> Iterator[tuple[Key, Pixels]]:
        for position in positions.tolist():
            try:
                image = self.images.read(position)
            except DataError:  # whoever reads it from the cache will decode it and hear of it in its place
                continue
            yield self.keys[position], shrunk(image, self.side)


def _build(builder: _Builder, tasks: Sequence[_Task], workers: int, watcher: Watcher) -> int:
    """Returns how many images were decoded."""
    decoded, waiting = 0, list(tasks)
    watcher.begin(sum(len(task.positions) for task in tasks))
    outcomes: Iterable[_Outcome] = map(builder.__getitem__, waiting)
    if workers:
        outcomes = processes.results(processes.pool(builder, waiting, min(workers, len(waiting))), workers)
    while waiting:
        busy = []
        for task, outcome in zip(waiting, outcomes, strict=True):
            decoded += outcome.decoded
            if outcome.refused:
                watcher.say(
                    f"the image cache {builder.store.folder.parent} takes no more, {outcome.refused}: the other images "
                    "are decoded each time they are needed"
                )
                return decoded
            if outcome.busy:
                busy.append(task)
            else:
                watcher.advance(len(task.positions))
        if busy:  # another process is at it, or was killed at it
            time.sleep(0.1)
        waiting, outcomes = busy, map(builder.__getitem__, busy)
    return decoded
