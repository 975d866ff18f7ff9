"""What a learner sees: a stream of domains, each a named set of labelled images, split into train and test."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol, overload

import numpy as np
import numpy.typing as npt
import torch

from ductwork.errors import ConfigError, DataError, suggest

IntArray = npt.NDArray[np.int64]


class ImageSource(Protocol):
    """Where pixels come from. Sources are picklable, so that loader workers can be spawned."""

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """A stable name, unique in the source and free of machine paths: ``Art/Alarm_Clock/00001.jpg``."""
        ...

    def signature(self, index: int) -> str:
        """Cheap evidence of the content: a digest for arrays, the size in bytes for files."""
        ...

    def read(self, index: int) -> torch.Tensor:
        """The image as uint8 ``[3, H, W]`` RGB. Raises DataError with the name of what cannot be read."""
        ...


@dataclass(frozen=True, eq=False)
class ArraySource:
    """Images that are in memory already: uint8 ``[n, H, W, 3]``."""

    images: npt.NDArray[np.uint8]
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.images.dtype != np.uint8 or self.images.ndim != 4 or self.images.shape[-1] != 3:
            raise DataError(f"images must be uint8 [n, H, W, 3], not {self.images.dtype} {self.images.shape}")
        if len(self.names) != len(self.images):
            raise DataError(f"{len(self.images)} images but {len(self.names)} names")

    def __len__(self) -> int:
        return len(self.images)

    def name(self, index: int) -> str:
        return self.names[index]

    def signature(self, index: int) -> str:
        return hashlib.sha256(np.ascontiguousarray(self.images[index]).tobytes()).hexdigest()[:16]

    def read(self, index: int) -> torch.Tensor:
        return torch.from_numpy(self.images[index]).permute(2, 0, 1).contiguous()


@dataclass(frozen=True, eq=False)
class ConcatSource:
    """Several sources, one after another: what rehearsal and pooled training read from."""

    parts: tuple[ImageSource, ...]

    @cached_property
    def _starts(self) -> IntArray:
        return np.cumsum([0] + [len(part) for part in self.parts]).astype(np.int64)

    def locate(self, index: int) -> tuple[ImageSource, int]:
        part = int(np.searchsorted(self._starts, index, side="right")) - 1
        return self.parts[part], index - int(self._starts[part])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def name(self, index: int) -> str:
        source, local = self.locate(index)
        return source.name(local)

    def signature(self, index: int) -> str:
        source, local = self.locate(index)
        return source.signature(local)

    def read(self, index: int) -> torch.Tensor:
        source, local = self.locate(index)
        return source.read(local)


@dataclass(frozen=True, eq=False, repr=False)
class ImageSet:
    """Labelled images: ``labels[i]`` is the place of image ``i``'s class name in ``classes``."""

    source: ImageSource
    labels: IntArray
    classes: tuple[str, ...]
    indices: IntArray = field(default_factory=lambda: np.empty(0, np.int64))

    def __post_init__(self) -> None:
        labels = np.asarray(self.labels, dtype=np.int64)
        object.__setattr__(self, "labels", labels)
        if len(self.indices) == 0 and len(labels) == len(self.source):
            object.__setattr__(self, "indices", np.arange(len(labels), dtype=np.int64))
        if len(self.indices) != len(labels):
            raise DataError(f"{len(labels)} labels for {len(self.indices)} images")
        if len(labels) and not 0 <= labels.min() <= labels.max() < len(self.classes):
            raise DataError(
                f"labels run from {labels.min()} to {labels.max()}, but there are {len(self.classes)} classes"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"ImageSet({len(self)} images of {len(self.present())} classes)"

    def name(self, index: int) -> str:
        return self.source.name(int(self.indices[index]))

    def read(self, index: int) -> torch.Tensor:
        return self.source.read(int(self.indices[index]))

    def checksum(self, index: int) -> str:
        """A digest of the decoded pixels."""
        pixels = self.read(index).contiguous()
        return hashlib.sha256(f"{tuple(pixels.shape)}".encode() + pixels.numpy().tobytes()).hexdigest()[:16]

    def label_name(self, index: int) -> str:
        return self.classes[int(self.labels[index])]

    def counts(self) -> IntArray:
        """Images of each class ``[C]``."""
        return np.bincount(self.labels, minlength=len(self.classes)).astype(np.int64)

    def present(self) -> tuple[str, ...]:
        """The names of the classes that have at least one image, in the order of ``classes``."""
        return tuple(name for name, n in zip(self.classes, self.counts(), strict=True) if n)

    def subset(self, positions: Sequence[int] | IntArray) -> ImageSet:
        at = np.asarray(positions, dtype=np.int64)
        return replace(self, labels=self.labels[at], indices=self.indices[at])

    def relabel(self, classes: Sequence[str]) -> ImageSet:
        """The same images with labels counted in another list of class names, which must hold all present ones."""
        place = {name: i for i, name in enumerate(classes)}
        lost = [name for name in self.present() if name not in place]
        if lost:
            raise DataError(f"class {lost[0]!r} is not among the {len(place)} classes{suggest(lost[0], place)}")
        table = np.array([place.get(name, 0) for name in self.classes] or [0], dtype=np.int64)
        return replace(self, labels=table[self.labels], classes=tuple(classes))

    @staticmethod
    def concat(parts: Sequence[ImageSet]) -> ImageSet:
        """All images of ``parts``, labelled in the sorted union of their class names."""
        classes = tuple(sorted({name for part in parts for name in part.classes}))
        relabelled = [part.relabel(classes) for part in parts]
        starts = np.cumsum([0] + [len(part.source) for part in parts])
        return ImageSet(
            ConcatSource(tuple(part.source for part in parts)),
            np.concatenate([part.labels for part in relabelled]),
            classes,
            np.concatenate([part.indices + start for part, start in zip(parts, starts[:-1], strict=True)]),
        )

    @cached_property
    def fingerprint(self) -> str:
        """A digest of names, labels and content signatures; the order of the images does not matter."""
        lines = sorted(
            f"{self.name(i)}\t{self.label_name(i)}\t{self.source.signature(int(self.indices[i]))}"
            for i in range(len(self))
        )
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@dataclass(frozen=True)
class Reference:
    """An image by name instead of by value: what rehearsal methods keep. ``checksum`` is of its pixels."""

    domain: str
    name: str
    label: str
    checksum: str


@dataclass(frozen=True, eq=False, repr=False)
class Domain:
    """A named set of labelled images. ``classes`` are those that it can teach: the ones with training images."""

    name: str
    train: ImageSet
    test: ImageSet

    def __post_init__(self) -> None:
        if not len(self.train):
            raise DataError(f"domain {self.name!r} has no training image")

    def __repr__(self) -> str:
        return f"Domain({self.name!r}, {len(self.train)} train, {len(self.test)} test, {len(self.classes)} classes)"

    @cached_property
    def classes(self) -> tuple[str, ...]:
        return tuple(sorted(self.train.present()))

    @cached_property
    def targets(self) -> IntArray:
        """For each training image the place of its class in ``self.classes``: its row in the domain's block."""
        return self.train.relabel(self.classes).labels


@dataclass(frozen=True, eq=False, repr=False)
class Stream(Sequence[Domain]):
    """An ordered list of domains. ``tests`` is given where test sets are not those of the training domains."""

    name: str
    domains: tuple[Domain, ...]
    tests: Mapping[str, ImageSet] | None = None
    transform: str = "backbone"

    def __post_init__(self) -> None:
        names = [domain.name for domain in self.domains]
        if not names:
            raise DataError(f"stream {self.name!r} has no domain")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DataError(f"stream {self.name!r} has domain {twice[0]!r} twice")

    def __len__(self) -> int:
        return len(self.domains)

    def __repr__(self) -> str:
        return f"Stream({self.name!r}, {len(self.classes)} classes, {' -> '.join(self.order)})"

    @overload
    def __getitem__(self, index: int) -> Domain: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Domain, ...]: ...
    def __getitem__(self, index: int | slice) -> Domain | tuple[Domain, ...]:
        return self.domains[index]

    def __iter__(self) -> Iterator[Domain]:
        return iter(self.domains)

    @property
    def order(self) -> tuple[str, ...]:
        return tuple(domain.name for domain in self.domains)

    @cached_property
    def classes(self) -> tuple[str, ...]:
        return tuple(sorted({name for domain in self.domains for name in domain.classes}))

    def seen(self, domain: Domain | str) -> dict[str, ImageSet]:
        """The test sets that count once ``domain`` has been learned: A_b is measured over their union."""
        name = domain if isinstance(domain, str) else domain.name
        if name not in self.order:
            raise ConfigError(f"stream {self.name!r} has no domain {name!r}{suggest(name, self.order)}")
        if self.tests is not None:
            return dict(self.tests)
        return {d.name: d.test for d in self.domains[: self.order.index(name) + 1]}

    def reordered(self, order: Sequence[str]) -> Stream:
        """The same domains in another order; a subset is allowed, a name twice or unknown is not."""
        by_name = {domain.name: domain for domain in self.domains}
        for name in order:
            if name not in by_name:
                raise ConfigError(f"stream {self.name!r} has no domain {name!r}{suggest(name, by_name)}")
        return replace(self, domains=tuple(by_name[name] for name in order))

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the data and its split; the order of the domains does not matter."""
        lines = sorted(f"{d.name}\ttrain\t{d.train.fingerprint}\ttest\t{d.test.fingerprint}" for d in self.domains)
        lines += sorted(f"{name}\t{images.fingerprint}" for name, images in (self.tests or {}).items())
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()
