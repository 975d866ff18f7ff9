"""Decoded images on disk: shards that are written once, whole or not at all, and looked at through the memory map.

A shard holds the pixels of some images (uint8, rows of ``RGB``) one after another, then its index, then a footer that
says where the index begins. It gets its name when it is complete. Nobody needs to believe it, all the same: the index
carries a checksum, each image another one, and a reader checks an image before it uses it for the first time. That is
also why nothing is flushed to disk here: what a power failure takes away is found missing and decoded again.

Shards of one folder make a :class:`Store`, which finds images by 128-bit keys. How the folder came to be does not
matter: any number of processes may add shards, use them and remove them at the same time.
"""

from __future__ import annotations

import os
import shutil
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
import numpy.typing as npt
from filelock import FileLock, Timeout

Key = npt.NDArray[np.uint64]  #: ``[2]``
Keys = npt.NDArray[np.uint64]  #: ``[n, 2]``
Pixels = npt.NDArray[np.uint8]

#: What the index says of an image.
ENTRY = np.dtype([("key", "<u8", 2), ("offset", "<u8"), ("height", "<u4"), ("width", "<u4"), ("checksum", "<u4")])
_FOOTER = struct.Struct("<8sQQI")  # magic, images, where the index begins, its checksum
_MAGIC = b"ductimg\x01"
_SUFFIX = ".shard"
_BUILDERS = 64  # processes that can build at the same time; each leaves one unfinished file at most


def key_of(evidence: str) -> Key:
    """What an image is found by, from anything that tells it from all others."""
    digest = blake2b(evidence.encode(errors="surrogateescape"), digest_size=16).digest()
    return np.frombuffer(digest, "<u8")


def write_shard(path: Path, images: Iterable[tuple[Key, Pixels]]) -> int:
    """Keys and pixels ``[H, W, 3]`` into a file; returns how many there were. No more than one is held in memory."""
    entries, offset = [], 0
    with open(path, "wb") as file:
        for key, pixels in images:
            pixels = np.ascontiguousarray(pixels)
            file.write(pixels.data)
            entries.append((key, offset, pixels.shape[0], pixels.shape[1], zlib.crc32(pixels.data)))
            offset += pixels.nbytes
        index = np.array(entries, ENTRY).tobytes()
        file.write(index)
        file.write(_FOOTER.pack(_MAGIC, len(entries), offset, zlib.crc32(index)))
    return len(entries)


def read_index(path: Path) -> npt.NDArray[np.void] | None:
    """What a shard holds; None if it is not there any more or is not whole."""
    with suppress(OSError, struct.error), open(path, "rb") as file:
        file.seek(-_FOOTER.size, os.SEEK_END)
        end = file.tell()
        magic, images, start, checksum = _FOOTER.unpack(file.read())
        if magic == _MAGIC and start + images * ENTRY.itemsize == end:
            file.seek(start)
            index = file.read(images * ENTRY.itemsize)
            if zlib.crc32(index) == checksum:
                return np.frombuffer(index, ENTRY)
    return None


@dataclass(frozen=True)
class Found:
    """Where images are: number of the shard, -1 for images that no shard has, and the entry of each."""

    shards: tuple[str, ...]
    shard: npt.NDArray[np.int32]
    entries: npt.NDArray[np.void]


class Store:
    """The shards of a folder, all of one kind, and the bytes that they and their neighbours may take together."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self._parts: dict[str, npt.NDArray[np.void]] = {}  # what each whole shard holds, by name
        self._entries = np.empty(0, ENTRY)
        self._shard = np.empty(0, np.int32)
        self._order = np.empty(0, np.int64)  # of the first half of the keys

    def refresh(self) -> None:
        """Take notice of shards that came and went."""
        parts: dict[str, npt.NDArray[np.void]] = {}
        for name in sorted(path.name for path in self.folder.glob(f"*{_SUFFIX}")):
            part = self._parts[name] if name in self._parts else read_index(self.folder / name)
            if part is not None:
                parts[name] = part
        if parts.keys() == self._parts.keys():
            return
        self._parts = parts
        self._entries = np.concatenate([np.empty(0, ENTRY), *parts.values()])
        self._shard = np.repeat(np.arange(len(parts), dtype=np.int32), [len(part) for part in parts.values()])
        self._order = np.argsort(self._entries["key"][:, 0], kind="stable")

    def find(self, keys: Keys) -> Found:
        """Where the images are that have these keys."""
        ordered = self._entries["key"][self._order]
        at = np.searchsorted(ordered[:, 0], keys[:, 0])
        inside = at < len(ordered)
        here = np.zeros(len(keys), bool)
        here[inside] = (ordered[at[inside]] == keys[inside]).all(1)
        rows = self._order[at[here]]
        shard, entries = np.full(len(keys), -1, np.int32), np.zeros(len(keys), ENTRY)
        shard[here], entries[here] = self._shard[rows], self._entries[rows]
        used, shard[here] = np.unique(shard[here], return_inverse=True)
        names = list(self._parts)
        return Found(tuple(str(self.folder / names[i]) for i in used), shard, entries)

    @contextmanager
    def building(self, name: str) -> Iterator[Path | None]:
        """The right to build the shard ``name``, and the file to write; None while somebody else builds there.

        Places to build at are few, so that what killed builders leave behind is bounded: the next one overwrites it.
        """
        place = self.folder / f"build-{int(name[:8], 16) % _BUILDERS:02d}"
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(place.with_suffix(".lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            yield None
            return
        part = place.with_suffix(".part")
        try:
            yield part
        finally:
            part.unlink(missing_ok=True)  # it has its name by now, or the disk is full and wants it back
            lock.release()

    def has(self, name: str) -> bool:
        """Whether there is a whole shard of that name."""
        return read_index(self._path(name)) is not None

    def add(self, part: Path, name: str, *, since: float) -> bool:
        """Give a complete shard its name; False if there is no room for it but where shards are in use.

        The others, which were last used before the time ``since``, make room, the oldest first.
        """
        shards = sizes_and_times(self.folder.parent)
        used, size = sum(size for size, _, _ in shards), part.stat().st_size
        excess = used + size - min(self.limit, (used + size + shutil.disk_usage(self.folder).free) // 2)
        for bytes_, moment, path in sorted(shards, key=lambda shard: shard[1]):
            if excess <= 0 or moment >= since:
                break
            with suppress(OSError):  # Windows keeps what somebody looks at
                path.unlink(missing_ok=True)
                excess -= bytes_
        if excess > 0:
            return False
        part.replace(self._path(name))
        return True

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}{_SUFFIX}"


def sizes_and_times(folder: Path) -> list[tuple[int, float, Path]]:
    """Bytes and time of the last use of every shard in the folders within ``folder``."""
    found = []
    for path in folder.glob(f"*/*{_SUFFIX}"):
        with suppress(OSError):  # another process may have removed it
            status = path.stat()
            found.append((status.st_size, status.st_mtime, path))
    return found


@dataclass(frozen=True)
class Holding:
    """What the shards of one kind take; ``used`` is when one of them was last used, in seconds since 1970."""

    kind: str
    images: int
    bytes: int
    used: float


def holdings(folder: Path) -> list[Holding]:
    """What lies in a cache folder, the kinds in the order of their names."""
    found: dict[str, list[tuple[int, float, Path]]] = {}
    for shard in sizes_and_times(folder):
        found.setdefault(shard[2].parent.name, []).append(shard)
    return [
        Holding(
            kind,
            sum(len(index) for _, _, path in shards if (index := read_index(path)) is not None),
            sum(size for size, _, _ in shards),
            max(moment for _, moment, _ in shards),
        )
        for kind, shards in sorted(found.items())
    ]


def clear(folder: Path) -> int:
    """Remove all shards and what killed builders left behind; returns the bytes. Runs under way decode again."""
    freed = 0
    for path in (*folder.glob(f"*/*{_SUFFIX}"), *folder.glob("*/build-*.part")):
        with suppress(OSError):
            size = path.stat().st_size
            path.unlink()
            freed += size
    return freed
