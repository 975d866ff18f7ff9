"""Streams from folders of images: ``root/<domain>/<class>/*`` or ``root/<domain>/{train,test}/<class>/*``.

Both layouts may occur in one stream. ``val`` stands for ``test`` where there is none, and is left alone where there is
one. Images may lie in sub-folders of their class. Hidden files and files that are not images are passed over. Domains
may lack classes or bring new ones. Folders are listed once and no image is decoded: see :func:`verify_readable`.

Names are compared in Unicode's composed form and sorted by code point, so labels, order and split are the same on
every platform and file system.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ductwork.data.domain import Domain, ImageSet, Stream
from ductwork.data.images import FileSource
from ductwork.data.listing import list_folder, own_name, unusable
from ductwork.data.rows import chosen
from ductwork.data.splits import train_test_split
from ductwork.data.transforms import check_name
from ductwork.errors import DataError

LAYOUT = "<domain>/<class>/<image> or <domain>/{train,test}/<class>/<image>"
_PARTS = {"train", "test", "val"}
_ALMOST_PARTS = {"training", "testing", "valid", "validation"}


def folders(
    root: str | os.PathLike[str],
    *,
    order: Sequence[str] | str | None = None,
    split: float = 0.7,
    seed: int = 1993,
    transform: str | None = None,
    name: str | None = None,
) -> Stream:
    """The stream of domains in a folder, sorted by name or in the given ``order``, which may be a selection.

    ``split`` is the share of training images in domains that have no ``train`` and ``test`` folders, and ``seed``
    chooses which ones. ``transform`` names a recipe of :mod:`ductwork.data.transforms`.
    """
    check_name(transform or "backbone")
    top = _Folder.open(Path(root).expanduser(), "")
    top.refuse_images("outside of any domain")
    if not top.folders:
        raise DataError(f"{top.path}: no domain folder in here; expected {LAYOUT}")
    if {"train"} <= {name.lower() for name in top.folders} <= _PARTS:
        raise DataError(f"{top.path}: this is the folder of one domain; move it into another one and open that one")
    _refuse_lookalikes((f"{top.path}/{domain}", domain) for domain in top.folders)
    base = os.path.abspath(top.path)
    names = chosen(order, top.folders, str(top.path))
    domains = [_domain(top.enter(domain), domain, base, split, seed) for domain in names]
    _refuse_lookalikes((f"{top.path}/{d.name}/{label}", label) for d in domains for label in d.train.classes)
    classes = sorted({label for domain in domains for label in domain.classes})
    if len(classes) < 2:
        raise DataError(f"{top.path}: all images are of one class, {classes[0]!r}; a classifier needs two or more")
    return Stream(name or own_name(base), tuple(domains), transform=transform or "backbone")


def folder_domain(
    path: str | os.PathLike[str], *, split: float = 0.7, seed: int = 1993, name: str | None = None
) -> Domain:
    """The domain in a single folder: ``path/<class>/*`` or ``path/{train,test}/<class>/*``."""
    above, own = os.path.split(os.path.abspath(Path(path).expanduser()))
    folder = _Folder.open(Path(path).expanduser(), own)
    domain = _domain(folder, name or own_name(own), above, split, seed)
    _refuse_lookalikes((f"{folder.path}/{label}", label) for label in domain.train.classes)
    return domain


def verify_readable(stream: Iterable[Domain], *, sample: int | None = 1) -> int:
    """Decode the first ``sample`` images of every class, domain and part (all of them if None); returns how many.

    What cannot be read is reported in one DataError, before the first batch rather than in the middle of an epoch.
    """
    broken, read = [], 0
    for domain in stream:
        for images in (domain.train, domain.test):
            for label in np.unique(images.labels):
                for position in np.flatnonzero(images.labels == label)[:sample]:
                    read += 1
                    try:
                        images.read(int(position))
                    except DataError as error:
                        broken.append(str(error))
    if broken:
        others = f" (and {len(broken) - 1} more of the {read} images tried)" if len(broken) > 1 else ""
        raise DataError(broken[0] + others)
    return read


@dataclass(frozen=True)
class _Folder:
    """One listed folder. Keys of ``folders`` and ``images`` are composed names, values the names on disk; sorted."""

    path: Path  # as the user wrote it, for messages
    within: str  # relative to the root of the stream, on disk
    trail: tuple[tuple[int, int], ...]  # device and inode of this folder and of those above it
    folders: dict[str, str]
    images: dict[str, str]

    @staticmethod
    def open(path: Path, within: str, trail: tuple[tuple[int, int], ...] = ()) -> _Folder:
        try:
            status = os.stat(path)
        except OSError as error:
            raise unusable(path, error) from error
        here = (status.st_dev, status.st_ino)
        if here in trail:
            raise DataError(f"{path}: this link leads back to a folder that it lies in; remove it")
        found = list_folder(path).sound()
        return _Folder(path, within, (*trail, here), found.folders, found.images)

    def enter(self, name: str) -> _Folder:
        on_disk = self.folders[name]
        return _Folder.open(self.path / on_disk, f"{self.within}/{on_disk}".lstrip("/"), self.trail)

    def files(self) -> Iterator[str]:
        """All images in here and below, relative to the root of the stream; those of each folder sorted by name."""
        yield from (f"{self.within}/{on_disk}" for on_disk in self.images.values())
        for name in self.folders:
            yield from self.enter(name).files()

    def labelled_files(self) -> list[tuple[str, str]]:
        """(class, file) for all images, where the folders in here are classes."""
        self.refuse_images("outside of any class")
        if not self.folders:
            raise DataError(f"{self.path}: no class folder in here; expected {LAYOUT}")
        found: list[tuple[str, str]] = []
        for label in self.folders:
            before = len(found)
            found += [(label, file) for file in self.enter(label).files()]
            if len(found) == before:
                raise DataError(f"{self.path / label}: no image in this class folder; add some or remove the folder")
        return found

    def refuse_images(self, where: str) -> None:
        if self.images:
            first = self.path / next(iter(self.images.values()))
            raise DataError(f"{first}: this image lies {where}; expected {LAYOUT}")


def _domain(folder: _Folder, name: str, base: str, split: float, seed: int) -> Domain:
    parts = _parts(folder)
    if parts is None:
        images = _image_set(base, folder.labelled_files())
        names = [images.name(i) for i in range(len(images))]
        train, test = train_test_split(names, images.labels, split, seed)
        if not len(test):
            raise DataError(f"{folder.path}: every class has a single image, so none is left for testing; add images")
        return Domain(name, images.subset(train), images.subset(test))
    files = [part.labelled_files() for part in parts]
    lost = sorted({label for label, _ in files[1]} - {label for label, _ in files[0]})
    if lost:
        raise DataError(f"{parts[1].path / lost[0]}: class {lost[0]!r} has test images but none in {parts[0].path}")
    images, cut = _image_set(base, files[0] + files[1]), len(files[0])
    return Domain(name, images.subset(np.arange(cut)), images.subset(np.arange(cut, len(images))))


def _parts(folder: _Folder) -> tuple[_Folder, _Folder] | None:
    """The train and the test folder of a domain, or None if its folders are classes.

    A class may be called ``train``, as on rails: next to other classes, or with images of its own, it is one.
    """
    parts = {name.lower(): name for name in folder.folders}
    others = sorted(set(parts) - _PARTS)
    if not others and parts:
        test = "test" if "test" in parts else "val"
        if "train" not in parts:
            raise DataError(f"{folder.path}: {parts[test]!r} without 'train'; expected {LAYOUT}")
        train = folder.enter(parts["train"])
        if test in parts:
            return train, folder.enter(parts[test])
        if train.images:
            return None
        raise DataError(f"{folder.path}: 'train' without 'test'; add it, or put the classes directly in here")
    if others and set(others) <= _ALMOST_PARTS:
        raise DataError(f"{folder.path / parts[others[0]]}: call this folder 'train', 'test' or 'val'")
    if {"train", "test"} <= set(parts):
        raise DataError(f"{folder.path / parts[others[0]]}: lies beside 'train' and 'test'; move it into them or away")
    return None


def _image_set(base: str, files: Sequence[tuple[str, str]]) -> ImageSet:
    classes = tuple(sorted({label for label, _ in files}))
    place = {label: i for i, label in enumerate(classes)}
    source = FileSource(base, tuple(file for _, file in files))
    return ImageSet(source, np.array([place[label] for label, _ in files]), classes)


def _refuse_lookalikes(places: Iterable[tuple[str, str]]) -> None:
    """Names that differ only in case or in blanks at the ends are one name to people and to some file systems."""
    seen: dict[str, tuple[str, str]] = {}
    for place, name in places:
        first_place, first = seen.setdefault(name.strip().casefold(), (place, name))
        if first != name:
            raise DataError(f"{place} and {first_place} differ only in upper and lower case or blanks; rename one")
