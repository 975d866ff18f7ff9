"""DomainNet, cleaned version: 345 classes in six looks (Peng et al., ICCV 2019), and its class-incremental form.

Lists ``<domain>_{train,test}.txt`` name the images, which lie beside them. A class is called like its folder; label
ids must agree with the folders in every list. Painting has no training image of ``t-shirt``: that domain lacks the
class, and its test images of it count against whoever has not learned it elsewhere. (The released code moves a test
image into training instead.)
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from ductwork.data.benchmarks import Benchmark, Count, refuse_split, register_benchmark
from ductwork.data.domain import Domain, ImageSet, Stream
from ductwork.data.images import FileSource
from ductwork.data.incremental import by_classes
from ductwork.errors import DataError

_DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
_CLASSES = 345
_INCREMENT = 69


class _Entry(NamedTuple):
    path: str
    label: int


@dataclass
class _Names:
    """Label id <-> class folder, with the place where each pair was seen first."""

    of: dict[int, tuple[str, str]] = field(default_factory=dict)
    back: dict[str, tuple[int, str]] = field(default_factory=dict)

    def note(self, label: int, name: str, where: str) -> None:
        first_name, there = self.of.setdefault(label, (name, where))
        if first_name != name:
            raise DataError(f"{where}: label {label} is class {name!r} here, but {first_name!r} in {there}")
        first_label, there = self.back.setdefault(name, (label, where))
        if first_label != label:
            raise DataError(f"{where}: class {name!r} has label {label} here, but {first_label} in {there}")

    def in_order(self) -> tuple[str, ...]:
        return tuple(self.of[label][0] for label in sorted(self.of))


def _open(root: Path, order: tuple[str, ...], split: float | None, seed: int) -> Stream:
    refuse_split(DOMAINNET, split)
    return _stream(root, order)[0]


def _stream(root: Path, order: tuple[str, ...]) -> tuple[Stream, tuple[str, ...]]:
    """The stream of domains, and the classes in the order of their label ids."""
    names = _Names()
    lists = {(domain, part): _read(root, domain, part, names) for domain in order for part in ("train", "test")}
    classes = names.in_order()
    place = {label: i for i, label in enumerate(sorted(names.of))}
    base = os.path.abspath(root)

    def images(domain: str, part: Literal["train", "test"]) -> ImageSet:
        entries = lists[domain, part]
        labels = np.array([place[entry.label] for entry in entries], dtype=np.int64)
        return ImageSet(FileSource(base, tuple(entry.path for entry in entries)), labels, classes)

    domains = tuple(Domain(domain, images(domain, "train"), images(domain, "test")) for domain in order)
    return Stream(DOMAINNET.name, domains, transform="paper"), classes


def _read(root: Path, domain: str, part: str, names: _Names) -> list[_Entry]:
    """The entries of one list, sorted by path; what is wrong is named with its line."""
    path = root / f"{domain}_{part}.txt"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise DataError(f"{path}: this list is missing; it comes with {DOMAINNET.title} ({DOMAINNET.home})") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    found: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            entry = _parse(line, domain, f"{path}:{number}")
            if entry.path in found:
                raise DataError(f"{path}:{number}: {entry.path} is listed twice")
            names.note(entry.label, entry.path.split("/")[1], f"{path}:{number}")
            found[entry.path] = entry.label
    if not found:
        raise DataError(f"{path}: this list is empty")
    return [_Entry(name, found[name]) for name in sorted(found)]


def _parse(line: str, domain: str, where: str) -> _Entry:
    name, _, number = line.strip().rpartition(" ")
    name, parts = name.strip(), name.strip().split("/")
    if len(parts) != 3 or parts[0] != domain or ".." in parts or not number.isdecimal():
        raise DataError(f"{where}: {line.strip()!r} is not '{domain}/<class>/<image> <label>'")
    if int(number) >= _CLASSES:
        raise DataError(f"{where}: label {number} is too high; {DOMAINNET.title} has labels 0 to {_CLASSES - 1}")
    return _Entry(name, int(number))


def _open_incremental(root: Path, order: tuple[str, ...], split: float | None, seed: int) -> Stream:
    return _by_classes(INCREMENTAL, root, split).reordered(order)


def _open_shifting(root: Path, order: tuple[str, ...], split: float | None, seed: int) -> Stream:
    return _by_classes(SHIFTING, root, split, one_domain_a_stage=True).reordered(order)


def _by_classes(facts: Benchmark, root: Path, split: float | None, *, one_domain_a_stage: bool = False) -> Stream:
    refuse_split(facts, split)
    stream, classes = _stream(root, DOMAINNET.orders[0])
    if len(classes) != _CLASSES:
        raise DataError(f"{root}: the lists name {len(classes)} classes; {facts.name} needs all {_CLASSES}")
    return by_classes(stream, _INCREMENT, classes=classes, name=facts.name, one_domain_a_stage=one_domain_a_stage)


def _present(root: Path) -> bool:
    return any((root / f"{domain}_train.txt").is_file() for domain in _DOMAINS)


_CLIP, _INFO, _PAINT, _QUICK, _REAL, _SKETCH = _DOMAINS
_TRAIN = (33525, 36023, 50416, 120750, 120906, 48212)
_TEST = (14604, 15582, 21850, 51750, 52041, 20916)
_DOWNLOAD = (
    "Get the cleaned version from the home page: for each of the six domains the archive and the train and test lists.",
    "Unpack all archives into one folder and put the twelve lists (clipart_train.txt ...) beside the folders.",
)
_LAYOUT = "<domain>_{train,test}.txt and <domain>/<class>/*"
_T_SHIRT = "painting has no training image of 't-shirt': the domain lacks that class."

DOMAINNET = register_benchmark(
    Benchmark(
        name="domainnet",
        title="DomainNet (cleaned)",
        about="345 classes as clip art, infographics, paintings, drawings, photographs and sketches; 586,575 images",
        home="https://ai.bu.edu/M3SDA",
        download=_DOWNLOAD,
        layout=_LAYOUT,
        orders=(
            (_CLIP, _INFO, _PAINT, _QUICK, _REAL, _SKETCH),
            (_INFO, _PAINT, _QUICK, _REAL, _SKETCH, _CLIP),
            (_PAINT, _QUICK, _REAL, _SKETCH, _CLIP, _INFO),
            (_QUICK, _REAL, _SKETCH, _CLIP, _INFO, _PAINT),
            (_REAL, _QUICK, _PAINT, _SKETCH, _INFO, _CLIP),
        ),
        classes=_CLASSES,
        expected=(
            *(Count(domain, "train", n) for domain, n in zip(_DOMAINS, _TRAIN, strict=True)),
            *(Count(domain, "test", n) for domain, n in zip(_DOMAINS, _TEST, strict=True)),
        ),
        present=_present,
        notes=(_T_SHIRT,),
    ),
    _open,
)

INCREMENTAL = register_benchmark(
    Benchmark(
        name="domainnet-cil",
        title="DomainNet (cleaned)",
        about="DomainNet split by classes: its six domains pooled, five stages of 69 classes in the order of labels",
        home=DOMAINNET.home,
        download=_DOWNLOAD,
        layout=_LAYOUT,
        orders=(tuple(f"classes {i + 1}-{i + _INCREMENT}" for i in range(0, _CLASSES, _INCREMENT)),),
        classes=_CLASSES,
        expected=(Count(None, "train", sum(_TRAIN)), Count(None, "test", sum(_TEST))),
        present=_present,
        folder=DOMAINNET.name,
    ),
    _open_incremental,
)

SHIFTING = register_benchmark(
    replace(
        INCREMENTAL,
        name="domainnet-cil-shifting",
        about="the same five stages as the released code of DUCT makes them: each of another domain, without sketches",
        expected=(),  # which images of a domain a stage takes is no published number
    ),
    _open_shifting,
)
