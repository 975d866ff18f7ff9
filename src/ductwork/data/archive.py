"""Streams from WebDataset shards: plain tar files in which the members of a sample share their name up to the first
dot.

A sample has one image (``.jpg``, ``.png`` ...) and says what is known of it in ``.json`` (the keys ``label``,
``domain`` and ``split``) or in members of one word each: ``.cls`` or ``.txt`` is the label, ``.domain`` the domain,
``.split`` the split. Where no member says the domain, it is the folder that the shard lies in, or else the folder of
the sample within the shard; where none says the split, a folder or a file name that begins with ``train``, ``test``
or ``val`` does.

Shards are listed once and read where the images lie. Nothing is unpacked, and no other member is opened: what is in
``.pyd`` or ``.pth`` members would be code.
"""

from __future__ import annotations

import json
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import torch

from ductwork.data.domain import Stream
from ductwork.data.images import decode_image, file_evidence, is_image
from ductwork.data.listing import composed, list_folder, own_name
from ductwork.data.rows import Row, Wishes, stream_of, text
from ductwork.errors import DataError

_WORDS: Final = {"cls": "label", "txt": "label", "domain": "domain", "split": "split"}
_SPLIT = re.compile(r"(train|test|validation|valid|val)(?![a-z])", re.IGNORECASE)
_MOST_BYTES = 1 << 20  # of a member that describes an image


@runtime_checkable
class EncodedSource(Protocol):
    """A source whose images are files within a file."""

    def encoded(self, index: int) -> bytes:
        """The content of the image file."""
        ...


@dataclass(frozen=True, eq=False)
class TarSource:
    """Images within tar files. ``members`` says for each its name, the number of its shard, and where it lies."""

    root: str
    shards: tuple[str, ...]
    members: tuple[tuple[str, int, int, int], ...]  # name, shard, offset, bytes

    def __len__(self) -> int:
        return len(self.members)

    def name(self, index: int) -> str:
        name, shard, _, _ = self.members[index]
        return composed(f"{self.shards[shard]}/{name}")

    def signature(self, index: int) -> str:
        return str(self.members[index][3])

    @cached_property
    def _shard_evidence(self) -> tuple[str, ...]:
        return tuple(file_evidence(Path(self.root, shard)) for shard in self.shards)

    def evidence(self, index: int) -> str:
        _, shard, offset, size = self.members[index]
        return f"{self._shard_evidence[shard]}\0{offset}\0{size}"

    def encoded(self, index: int) -> bytes:
        _, shard, offset, size = self.members[index]
        path = Path(self.root, self.shards[shard])
        try:
            with open(path, "rb") as file:
                file.seek(offset)
                return file.read(size)
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error

    def read(self, index: int) -> torch.Tensor:
        return decode_image(self.encoded(index), str(Path(self.root, self.name(index))))


def has_shards(path: Path) -> bool:
    """Whether this is a tar file, or a folder of them: one that holds no images, however many archives lie about."""
    if not path.is_dir():
        return _is_shard(path.name)
    found = list_folder(path)
    inner = [list_folder(path / name) for name in found.folders.values()]
    some = any(_is_shard(name) for each in (found, *inner) for name in each.others)
    return some and not _holds_images(path, levels=4)


def _holds_images(path: Path, levels: int) -> bool:
    found = list_folder(path)
    return bool(found.images) or (
        levels > 1 and any(_holds_images(path / name, levels - 1) for name in found.folders.values())
    )


def webdataset(
    path: str | os.PathLike[str],
    *,
    order: Sequence[str] | str | None = None,
    split: float = 0.7,
    seed: int = 1993,
    transform: str | None = None,
    name: str | None = None,
) -> Stream:
    """The stream of domains in a shard, or in all shards of a folder and the folders in it.

    ``split`` is the share of training images where nothing says the split, and ``seed`` chooses which ones.
    """
    place = Path(path).expanduser()
    root = place if place.is_dir() else place.parent
    shards = tuple(sorted(_shards(place, "") if place.is_dir() else [place.name]))
    samples = [sample for number, shard in enumerate(shards) for sample in _samples(root, shard, number)]
    if not samples:
        raise DataError(f"{place}: no sample with an image in any shard")
    source = TarSource(os.path.abspath(root), shards, tuple(sample.image for sample in samples if sample.image))
    rows = [_row(sample, root, shards) for sample in samples]
    return stream_of(
        rows, source, Wishes(order, split, seed, transform), name=name or own_name(place.stem), place=str(place)
    )


@dataclass
class _Sample:
    """What the members of one name say."""

    key: str
    shard: int
    image: tuple[str, int, int, int] | None = None
    words: dict[str, str] = field(default_factory=dict)


def _is_shard(name: str) -> bool:
    return name.lower().endswith((".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".tar.bz2"))


def _shards(folder: Path, within: str) -> Iterator[str]:
    found = list_folder(folder).sound()
    yield from (within + name for name in found.others.values() if _is_shard(name))
    for name in found.folders.values():
        yield from _shards(folder / name, f"{within}{name}/")


def _samples(root: Path, shard: str, number: int) -> list[_Sample]:
    """The samples of one shard that have an image, in the order of their names."""
    path, samples = root / shard, dict[str, _Sample]()
    try:
        with tarfile.open(path, "r:") as tar:
            size = path.stat().st_size
            for member in tar:
                folder, _, base = member.name.rpartition("/")
                stem, _, extension = base.partition(".")
                if not member.isreg() or not stem or not extension:
                    continue
                if member.offset_data + member.size > size:
                    raise DataError(f"{path}: this shard is cut off; fetch it again")
                key = f"{folder}/{stem}".lstrip("/")
                sample = samples.setdefault(key, _Sample(key, number))
                _take(sample, tar, member, extension.lower(), f"{path}: {key}")
    except tarfile.ReadError as error:
        wrong = "this is no plain tar file, or it is damaged; unpack compressed shards first (gunzip)"
        raise DataError(f"{path}: {wrong}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    return [samples[key] for key in sorted(samples) if samples[key].image is not None]


def _take(sample: _Sample, tar: tarfile.TarFile, member: tarfile.TarInfo, extension: str, where: str) -> None:
    """What one member adds to its sample."""
    if is_image(f"x.{extension}") and "." not in extension:
        if sample.image is not None:
            raise DataError(f"{where}: two images in one sample; which one counts?")
        sample.image = (member.name, sample.shard, member.offset_data, member.size)
    elif (extension in _WORDS or extension == "json") and member.size <= _MOST_BYTES:
        file = tar.extractfile(member)
        assert file is not None  # it is a regular file
        try:
            content = file.read().decode("utf-8-sig")
            said = _described(json.loads(content)) if extension == "json" else {_WORDS[extension]: text(content)}
        except ValueError as error:
            raise DataError(f"{where}.{extension}: is not what its name says ({error})") from None
        # what .json says is said for machines, a caption in .txt need not be a label
        sample.words = sample.words | said if extension in ("json", "cls") else said | sample.words


def _described(content: Any) -> dict[str, str]:
    known = content if isinstance(content, dict) else {}
    return {key: text(known[key]) for key in ("label", "domain", "split") if known.get(key) is not None}


def _row(sample: _Sample, root: Path, shards: Sequence[str]) -> Row:
    shard = shards[sample.shard]
    where = f"{root / shard}: {sample.key}"
    *folders, file = shard.split("/")
    inner = sample.key.split("/")[:-1]
    splits = [match[1].lower() for part in (file, *reversed(folders)) if (match := _SPLIT.match(part))]
    domains = [part for part in (*folders, *inner) if not _SPLIT.fullmatch(part)]
    domain = sample.words.get("domain") or (composed(domains[0]) if domains else "")
    if not domain:
        raise DataError(f"{where}: no domain; say it in .json or .domain, or give the shards of each domain a folder")
    if not sample.words.get("label"):
        raise DataError(f"{where}: no label; say it in .cls, .txt or .json")
    return Row(sample.words["label"], domain, sample.words.get("split") or (splits[0] if splits else ""), where)
