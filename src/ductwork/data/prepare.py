"""Getting a benchmark ready: where to download it, whether a download is complete, and an index of what it holds.

The index is kept in the cache folder of the user, never in the data folder, which may be read-only or shared.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ductwork.data.benchmarks import Benchmark, Count, benchmarks
from ductwork.data.domain import ImageSet, Stream
from ductwork.data.streams import available, open_stream
from ductwork.errors import ConfigError, DataError, suggest

_FORMAT = 1


@dataclass(frozen=True)
class Comparison:
    """What was found next to what a complete download has; ``expected`` is None where that was never published."""

    domain: str
    split: str
    found: int
    expected: int | None

    @property
    def agrees(self) -> bool:
        return self.expected is None or self.found == self.expected


def facts_of(name: str) -> Benchmark:
    """What is known about a benchmark."""
    available()  # registers them
    known = benchmarks()
    if name not in known:
        raise ConfigError(f"{name!r} is no benchmark that could be prepared{suggest(name, known)}")
    return known[name]


def instructions(facts: Benchmark) -> str:
    """How to get the data, in plain words."""
    steps = [f"{number}. {step}" for number, step in enumerate(facts.download, start=1)]
    last = f"{len(steps) + 1}. ductwork data prepare {facts.name} --root DIR"
    return "\n".join([f"{facts.title}: {facts.home}", *steps, last, f"Layout: DIR/{facts.layout}"])


def open_download(facts: Benchmark, root: str | os.PathLike[str]) -> Stream:
    """The stream in its first order; if the download is incomplete, one DataError that names every missing part."""
    try:
        return open_stream(facts.name, root=root)
    except DataError as error:
        faults = {str(error): None}
        for domain in facts.orders[0]:
            try:
                open_stream(facts.name, root=root, order=[domain])
            except DataError as another:
                faults[str(another)] = None
        raise DataError(" | ".join(faults)) from None


def compare(facts: Benchmark, stream: Stream) -> list[Comparison]:
    """Counts of a download next to the published ones, and the number of classes."""
    found: dict[tuple[str, str], int] = {}
    for domain in stream:
        found[domain.name, "train"] = len(domain.train)
        if stream.tests is None:
            found[domain.name, "test"] = len(domain.test)
    found.update({(name, "test"): len(images) for name, images in (stream.tests or {}).items()})
    known = {(count.domain, str(count.split)): count.images for count in facts.expected}
    rows = [Comparison(domain, split, n, known.get((domain, split))) for (domain, split), n in found.items()]
    rows += [_total(count, found) for count in facts.expected if count.domain is None]
    return [*rows, Comparison("all", "classes", len(stream.classes), facts.classes)]


def _total(count: Count, found: Mapping[tuple[str, str], int]) -> Comparison:
    return Comparison(
        "all", count.split, sum(n for (_, split), n in found.items() if split == count.split), count.images
    )


def write_index(
    stream: Stream,
    root: str | os.PathLike[str],
    *,
    begin: Callable[[int], object] = lambda images: None,
    advance: Callable[[int], object] = lambda images: None,
) -> Path:
    """Names, labels and sizes of all images as JSON in the cache folder; returns where.

    ``begin`` is told how many images there are and ``advance`` how many more are done.
    """
    base = Path(root).expanduser().resolve()
    folder = cache_folder() / "index"
    if folder.resolve().is_relative_to(base):
        raise ConfigError(
            f"the cache folder {folder} lies in the data folder {base}; set XDG_CACHE_HOME to another place"
        )
    sets = [images for d in stream for images in (d.train, d.test)] + list((stream.tests or {}).values())
    begin(sum(map(len, sets)))

    def entries(images: ImageSet) -> dict[str, Any]:
        found = _entries(images)
        advance(len(images))
        return found

    content = {
        "format": _FORMAT,
        "stream": stream.name,
        "root": str(base),
        "domains": {d.name: {"train": entries(d.train), "test": entries(d.test)} for d in stream},
        "tests": {name: entries(images) for name, images in (stream.tests or {}).items()},
        "fingerprint": stream.fingerprint,
    }
    path = folder / f"{stream.name}-{hashlib.sha256(str(base).encode()).hexdigest()[:12]}.json"
    try:
        _write(path, json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode())
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None
    return path


def _entries(images: ImageSet) -> dict[str, Any]:
    rows = [
        (images.name(i), int(images.labels[i]), images.source.signature(int(images.indices[i])))
        for i in range(len(images))
    ]
    return {"classes": list(images.classes), "images": rows}


def cache_folder() -> Path:
    """Where the system wants caches to be. ``XDG_CACHE_HOME`` decides on every system where it is set."""
    home = os.environ.get("XDG_CACHE_HOME")
    if home and os.path.isabs(home):  # the standard says to ignore relative ones
        return Path(home) / "ductwork"
    try:
        own = Path.home()
    except RuntimeError:  # a container may run as somebody who has no home
        return Path(tempfile.gettempdir()) / "ductwork"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or own / "AppData" / "Local") / "ductwork" / "cache"
    return own / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "ductwork"


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all: written beside, flushed, renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise
