"""What the benchmark streams share: facts about each download, and finding and listing what lies in it.

A download is used as it is: nothing is renamed, converted or written into it. Names are compared in Unicode's composed
form and sorted by code point, so labels and splits are the same on every platform and file system.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from ductwork.data.domain import ImageSet, Stream
from ductwork.data.images import FileSource, is_image
from ductwork.data.streams import StreamInfo, register
from ductwork.errors import ConfigError, DataError

Split = Literal["train", "test"]
_NOT_DATA = (".", "__MACOSX", "@eaDir")  # hidden entries, and what archivers and file servers leave behind
Opener = Callable[[Path, tuple[str, ...], float | None, int], Stream]


@dataclass(frozen=True)
class Count:
    """So many images belong to one split of a domain, or, where ``domain`` is None, of all domains together."""

    domain: str | None
    split: Split
    images: int


@dataclass(frozen=True)
class Benchmark:
    """A published data set: where it comes from and how a complete download can be told from another one."""

    name: str
    title: str
    about: str
    home: str
    download: tuple[str, ...]  # what to fetch and how to lay it out, a step each
    layout: str
    orders: tuple[tuple[str, ...], ...]
    classes: int
    expected: tuple[Count, ...]
    present: Callable[[Path], bool]  # whether a folder looks like the root of the download
    folder: str = ""  # where it lies below a folder of several benchmarks; ``name`` unless given
    notes: tuple[str, ...] = ()  # what a user should know although nothing is wrong


_BENCHMARKS: dict[str, Benchmark] = {}


def benchmarks() -> Mapping[str, Benchmark]:
    """The benchmarks that have been registered, by the names of their streams."""
    return dict(sorted(_BENCHMARKS.items()))


def register_benchmark(facts: Benchmark, opener: Opener) -> Benchmark:
    """Make a benchmark known as a stream. ``opener`` gets a root that looks right, order, split and seed."""

    def opened(root: Path | None, order: tuple[str, ...], split: float | None, seed: int) -> Stream:
        return opener(need_root(facts, root), order, split, seed)

    register(StreamInfo(facts.name, facts.about, facts.home, opened, lambda: facts.orders))
    _BENCHMARKS[facts.name] = facts
    return facts


def need_root(facts: Benchmark, root: Path | None) -> Path:
    """The root as given, or the benchmark's own folder in it, where the download lies; or the line that helps."""
    if root is None:
        raise ConfigError(
            f"stream {facts.name!r} reads a download of {facts.title}: say where it lies with root=DIR (--root DIR); "
            f"`ductwork data prepare {facts.name}` says how to get it ({facts.home})"
        )
    if not root.is_dir():
        what = "a file, not a folder" if root.exists() else "no such folder"
        raise ConfigError(f"root {str(root)!r}: {what}; it shall hold {facts.layout} ({facts.title}, {facts.home})")
    if facts.present(root):
        return root
    own = root / (facts.folder or facts.name)  # one root for all benchmarks, each in a folder of its name
    if own.is_dir() and facts.present(own):
        return own
    near = next((place for place in _nearby(root) if facts.present(place)), None)
    hint = f"did you mean root={near}?" if near else f"`ductwork data prepare {facts.name}` says how to get it"
    raise ConfigError(f"root {str(root)!r} is not a download of {facts.title}: it shall hold {facts.layout}; {hint}")


def refuse_split(facts: Benchmark, split: float | None) -> None:
    if split is not None:
        raise ConfigError(f"stream {facts.name!r} has a train and a test part of its own: split has no use here")


def _nearby(root: Path) -> list[Path]:
    """One level up and one or two levels down: where archives and people put things instead."""
    below = [root / name for name in listing(root)[0].values()]
    further = [place / name for place in below[:50] for name in listing(place)[0].values()]
    return [root.absolute().parent, *below, *further]


def listing(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Sub-folders and images of a folder, sorted: composed name -> name on disk. What is not data is passed over."""
    folders: dict[str, str] = {}
    images: dict[str, str] = {}
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name.startswith(_NOT_DATA):
                    continue
                into = images if is_image(entry.name) else folders
                if into is images or entry.is_dir():
                    into[unicodedata.normalize("NFC", entry.name)] = entry.name
    except OSError as error:
        raise DataError(f"{path}: cannot be listed ({error.strerror or error})") from error
    return dict(sorted(folders.items())), dict(sorted(images.items()))


def files_by_class(root: Path, within: str) -> list[tuple[str, str]]:
    """(class, path relative to ``root``) of all images in ``root/within/<class>/``."""
    found = []
    for label, on_disk in listing(root / within)[0].items():
        place = f"{within}/{on_disk}"
        found += [(label, f"{place}/{name}") for name in listing(root / place)[1].values()]
    if not found:
        raise DataError(f"{root / within}: no image in any class folder; is the download complete?")
    return found


def image_set(files: Sequence[tuple[str, str]], source: Callable[[tuple[str, ...]], FileSource]) -> ImageSet:
    """(class, path) pairs as labelled images, the classes sorted by name."""
    classes = tuple(sorted({label for label, _ in files}))
    place = {label: i for i, label in enumerate(classes)}
    return ImageSet(source(tuple(path for _, path in files)), np.array([place[label] for label, _ in files]), classes)


@dataclass(frozen=True, eq=False)
class DomainFiles(FileSource):
    """Files below the folder of one domain, which the names begin with whatever the folder is called on disk."""

    domain: str = ""

    def name(self, index: int) -> str:
        return f"{self.domain}/{super().name(index)}"
