"""What is wrong with the images of a stream, as data: :func:`check` finds faults and says what becomes of them."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from ductwork.data.archive import EncodedSource
from ductwork.data.benchmarks import listing
from ductwork.data.domain import ImageSet, ImageSource, Stream
from ductwork.data.duplicates import Repeat, alike, repeats
from ductwork.data.examine import TRAITS, Look, look_at_content, look_at_files, look_at_pixels
from ductwork.data.images import FileSource
from ductwork.data.splits import train_test_split
from ductwork.data.streams import available, folders, open_stream, opener_of
from ductwork.errors import ConfigError, DataError

Severity = Literal["error", "warning", "note"]
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "note")
_IMBALANCE = 10  # the largest class of a domain has so many times the images of the smallest
_PARTS = {"train", "test", "val"}


@dataclass(frozen=True)
class Finding:
    """One thing about a stream that its owner should know. ``where`` names images, classes or folders."""

    severity: Severity
    kind: str
    where: tuple[str, ...]
    message: str


@dataclass(frozen=True)
class _Item:
    """One image and what it is taken for."""

    source: ImageSource
    index: int
    domain: str
    label: str
    test: bool

    @property
    def name(self) -> str:
        return self.source.name(self.index)


def check(
    name_or_path: str,
    *,
    root: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    begin: Callable[[int], object] = lambda images: None,
    advance: Callable[[int], object] = lambda images: None,
) -> list[Finding]:
    """All findings, the gravest first. Every image is read; ``begin`` and ``advance`` are told how many.

    A folder that cannot be opened as a stream is still looked through, so that one call names all that is to be done.
    """
    stream, refused = _try_to_open(name_or_path, root)
    folder = Path(name_or_path).expanduser() if name_or_path not in available() else None
    if folder is not None and opener_of(folder) is not folders:
        folder = None  # what follows is about folders of images
    faults = list(_root_faults(folder)) if folder and folder.is_dir() else []
    if stream is not None:
        items = list(_items(stream))
    elif folder and folder.is_dir() and not faults:
        items = list(_walk(folder))
    else:
        items = []
    faults += _name_faults(items)
    faults += _class_faults(items, refused=stream is None)
    if refused is not None and not any(fault.severity == "error" for fault in faults):
        faults.append(Finding("error", "layout", (), refused))  # nothing that was found says the same already
    looks = _look(items, workers, begin, advance)
    faults += _image_faults(items, looks)
    faults += [_repeat_fault(items, repeat) for repeat in _repeats(items, looks)]
    return sorted(faults, key=lambda f: (SEVERITIES.index(f.severity), f.kind, f.where))


def _try_to_open(name_or_path: str, root: str | os.PathLike[str] | None) -> tuple[Stream | None, str | None]:
    """The stream, or why the data cannot be one. What was typed wrongly is the caller's to hear."""
    try:
        return open_stream(name_or_path, root=root), None
    except DataError as error:
        return None, str(error)
    except ConfigError as error:
        if root is None or not Path(root).expanduser().is_dir() or name_or_path not in available():
            raise
        return None, str(error)  # the root is a folder, but of something else


def _items(stream: Stream) -> Iterator[_Item]:
    def of(images: ImageSet, domain: str, test: bool) -> Iterator[_Item]:
        for position, index in enumerate(images.indices):
            yield _Item(images.source, int(index), domain, images.label_name(position), test)

    for domain in stream:
        yield from of(domain.train, domain.name, False)
        yield from of(domain.test, domain.name, True)
    for name, images in (stream.tests or {}).items():
        yield from of(images, name, True)


def _walk(root: Path) -> Iterator[_Item]:
    """The images of a folder that was refused, read as leniently as can be."""
    for domain, place in listing(root)[0].items():
        parts = {name.lower(): f"{place}/{on_disk}" for name, on_disk in listing(root / place)[0].items()}
        if parts and set(parts) <= _PARTS:
            yield from _labelled(root, domain, parts.get("train"), test=False)
            yield from _labelled(root, domain, parts.get("test", parts.get("val")), test=True)
        else:
            yield from _cut(list(_labelled(root, domain, place, test=False)))


def _labelled(root: Path, domain: str, within: str | None, *, test: bool) -> Iterator[_Item]:
    classes = listing(root / within)[0] if within is not None else {}
    for label, on_disk in classes.items():
        source = FileSource(os.path.abspath(root), tuple(_files(root, f"{within}/{on_disk}")))
        yield from (_Item(source, i, domain, label, test) for i in range(len(source)))


def _cut(items: Sequence[_Item]) -> list[_Item]:
    """The split that the folder would get if it could be opened."""
    labels = np.unique([item.label for item in items] or [""], return_inverse=True)[1][: len(items)]
    test = set(train_test_split([item.name for item in items], labels, 0.7, 1993)[1].tolist())
    return [replace(item, test=position in test) for position, item in enumerate(items)]


def _files(root: Path, within: str) -> Iterator[str]:
    folders, images = listing(root / within)
    yield from (f"{within}/{name}" for name in images.values())
    for name in folders.values():
        yield from _files(root, f"{within}/{name}")


def _root_faults(root: Path) -> Iterator[Finding]:
    """Whether the folder one level up or down was meant."""
    folders, images = listing(root)
    inner = {name: listing(root / name) for name in folders.values()}
    where = (str(root),)
    if images and not folders:
        message = "holds images directly: it looks like the folder of one class; open the folder two levels up"
        yield Finding("error", "root", where, message)
    elif {"train"} <= {name.lower() for name in folders} <= _PARTS or (
        inner and all(images and not below for below, images in inner.values())
    ):
        message = f"looks like the folder of one domain; open the folder that holds it, {root.absolute().parent}"
        yield Finding("error", "root", where, message)
    for name, (classes, _) in inner.items():
        below = [listing(root / name / on_disk) for on_disk in classes.values()]
        if len(below) > 1 and all(folders and not images for folders, images in below):
            often = Counter(folder for folders, _ in below for folder in folders)
            if max(often.values()) > 1 and not set(map(str.lower, classes)) <= _PARTS:
                message = f"is one level too high: {name!r} holds domains, not classes; open {root / name}"
                yield Finding("error", "root", where, message)


def _name_faults(items: Sequence[_Item]) -> Iterator[Finding]:
    """Domains or classes that people would take for one."""
    for what, names in (("domain", {item.domain for item in items}), ("class", {item.label for item in items})):
        groups: dict[str, list[str]] = {}
        for name in sorted(names):
            groups.setdefault(_folded(name), []).append(name)
        for group in groups.values():
            if len(group) > 1:
                message = f"these {what} names differ only in case, blanks or underscores; give them one name"
                yield Finding("error", f"{what}-names", tuple(group), message)


def _folded(name: str) -> str:
    """Without case, blanks and underscores; but ``1_2`` is not ``12``."""
    apart = re.sub(r"(?<=\d)[\s_]+(?=\d)", "\0", name)
    return re.sub(r"[\s_]+", "", apart).casefold()


def _class_faults(items: Sequence[_Item], *, refused: bool) -> Iterator[Finding]:
    train: dict[str, Counter[str]] = {}
    test: dict[str, Counter[str]] = {}
    for item in items:
        (test if item.test else train).setdefault(item.domain, Counter())[item.label] += 1
    for domain, counts in train.items():
        yield from _untrained(domain, counts, test.get(domain, Counter()), "error" if refused else "warning")
        if len(counts) < 2:
            only = next(iter(counts))
            message = f"has a single class, {only!r}: nothing can be learned from it alone"
            yield Finding("warning", "few-classes", (domain,), message)
        largest, smallest = max(sorted(counts), key=counts.__getitem__), min(sorted(counts), key=counts.__getitem__)
        if counts[largest] >= _IMBALANCE * counts[smallest]:
            most, least = f"{largest!r} has {counts[largest]}", f"{smallest!r} {counts[smallest]}"
            yield Finding("warning", "imbalance", (domain,), f"training images are uneven: {most}, {least}")
    yield from _absent(train)


def _untrained(domain: str, train: Mapping[str, int], test: Mapping[str, int], severity: Severity) -> Iterator[Finding]:
    for label in sorted(set(test) - set(train)) if train else ():
        message = f"class {label!r} has {test[label]} test images in this domain but no training image"
        yield Finding(severity, "untrained-class", (domain, label), message)


def _absent(train: Mapping[str, Iterable[str]]) -> Iterator[Finding]:
    """Classes that a domain lacks, unless it teaches one class only, which is said elsewhere."""
    folded = {domain: {_folded(label): label for label in counts} for domain, counts in train.items()}
    seen = Counter(key for labels in folded.values() for key in labels)
    if not seen or max(seen.values()) < 2:
        return  # no class comes twice: the stream is class-incremental
    names = {key: label for labels in folded.values() for key, label in labels.items()}
    for domain, labels in folded.items():
        lacks = sorted(names[key] for key in set(names) - set(labels))
        if lacks and len(labels) > 1:
            shown = ", ".join(lacks[:5]) + (f" and {len(lacks) - 5} more" if len(lacks) > 5 else "")
            message = f"has no training image of {len(lacks)} of the {len(names)} classes: {shown}"
            yield Finding("note", "absent-classes", (domain,), message)


def _look(
    items: Sequence[_Item], workers: int | None, begin: Callable[[int], object], advance: Callable[[int], object]
) -> list[Look]:
    begin(len(items))
    files = [i for i, item in enumerate(items) if isinstance(item.source, FileSource)]
    paths = [str(item.source.path(item.index)) for item in items if isinstance(item.source, FileSource)]
    looks = dict.fromkeys(range(len(items)), Look())
    for i, look in zip(files, look_at_files(paths, workers), strict=True):
        looks[i] = look
        advance(1)
    for i in sorted(set(looks) - set(files)):
        looks[i] = _look_inside(items[i])
        advance(1)
    return list(looks.values())


def _look_inside(item: _Item) -> Look:
    """At an image that is no file of its own."""
    if not isinstance(item.source, EncodedSource):
        return look_at_pixels(_pixels(item))
    try:
        return look_at_content(item.source.encoded(item.index), item.name)
    except DataError as error:
        return Look("unreadable", str(error))


def _image_faults(items: Sequence[_Item], looks: Sequence[Look]) -> Iterator[Finding]:
    for item, look in zip(items, looks, strict=True):
        if look.fault:
            yield Finding("error", look.fault, (item.name,), look.message)
        else:
            yield from (Finding("note", trait, (item.name,), TRAITS[trait]) for trait in look.traits)


def _repeats(items: Sequence[_Item], looks: Sequence[Look]) -> Iterator[Repeat]:
    found = repeats(looks, [item.test for item in items], [item.label for item in items])
    for repeat in found:
        if repeat.exact or alike(*(_pixels(items[i]) for i in repeat.positions)):
            yield repeat


def _pixels(item: _Item) -> npt.NDArray[np.uint8]:
    pixels: npt.NDArray[np.uint8] = item.source.read(item.index).permute(1, 2, 0).numpy()
    return pixels


def _repeat_fault(items: Sequence[_Item], repeat: Repeat) -> Finding:
    found = [items[i] for i in repeat.positions]
    what = "the same image" if repeat.exact else "nearly the same image"
    parts = "; in training and in test" if repeat.leaks else ""
    if repeat.labels:
        labels = " and ".join(repr(label) for label in sorted({item.label for item in found}))
        kind, message = "two-labels", f"{what} is labelled {labels}{parts}"
    else:
        kind, message = "leak", f"{what} is in training and in test"
    return Finding(
        "error" if repeat.exact else "warning",
        kind if repeat.exact else f"near-{kind}",
        tuple(item.name for item in found),
        message,
    )
