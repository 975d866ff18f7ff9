"""From rows (an image, its label, its domain and perhaps its split) to a stream: what tables and archives share."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from ductwork.data.domain import Domain, ImageSet, ImageSource, IntArray, Stream
from ductwork.data.listing import composed
from ductwork.data.splits import train_test_split
from ductwork.data.transforms import check_name
from ductwork.errors import ConfigError, DataError, suggest

_SPLITS = {"train": "train", "test": "test", "val": "val", "validation": "val", "valid": "val"}


@dataclass(frozen=True, slots=True)
class Row:
    """What is known of one image. ``split`` is empty where nothing says it; ``where`` is for messages."""

    label: str
    domain: str
    split: str
    where: str


@dataclass(frozen=True)
class Wishes:
    """What a user may ask of any stream that is not a published one."""

    order: Sequence[str] | str | None = None
    split: float = 0.7
    seed: int = 1993
    transform: str | None = None


def text(value: object) -> str:
    """A cell as text in the form in which names are compared."""
    return "" if value is None else composed(str(value).strip())


def stream_of(rows: Sequence[Row], source: ImageSource, wishes: Wishes, *, name: str, place: str) -> Stream:
    """The stream of images ``source[i]`` that ``rows[i]`` describes. Its order is that of the names, or as wished.

    ``val`` stands for ``test`` where a domain has none, and is left alone where it has one. If no row says its split,
    each class of a domain is cut as in folders.
    """
    transform = check_name(wishes.transform or "backbone")
    parts = _splits(rows)
    members: dict[str, list[int]] = {}
    for position, row in enumerate(rows):
        members.setdefault(row.domain, []).append(position)
    order = chosen(wishes.order, sorted(members), place)
    domains = tuple(_domain(each, members[each], rows, parts, source, wishes, place) for each in order)
    classes = sorted({label for domain in domains for label in domain.classes})
    if len(classes) < 2:
        raise DataError(f"{place}: all images are of one class, {classes[0]!r}; a classifier needs two or more")
    return Stream(name, domains, transform=transform)


def chosen(order: Sequence[str] | str | None, names: Collection[str], place: str) -> list[str]:
    """The domains ``names`` in the order that was asked for, which may be a selection."""
    if order is None:
        return list(names)
    parts = order.split(",") if isinstance(order, str) else [str(part) for part in order]
    wanted = [composed(part.strip()) for part in parts]
    for name in wanted:
        if name not in names:
            raise ConfigError(f"{place}: order names {name!r}, which is no domain{suggest(name, names)}")
    return wanted


def _splits(rows: Sequence[Row]) -> list[str]:
    """The splits of all rows in our words, or of none."""
    parts = []
    for row in rows:
        for what, value in (("label", row.label), ("domain", row.domain)):
            if not value:
                raise DataError(f"{row.where}: {what!r} is empty")
        if row.split and row.split.lower() not in _SPLITS:
            raise DataError(f"{row.where}: split is {row.split!r}; say train, test or val")
        parts.append(_SPLITS.get(row.split.lower(), ""))
    if any(parts) and not all(parts):
        where = rows[parts.index("")].where
        raise DataError(f"{where}: split is empty here but not everywhere; fill it in or leave it out everywhere")
    return parts


def _domain(
    name: str,
    members: Sequence[int],
    rows: Sequence[Row],
    parts: Sequence[str],
    source: ImageSource,
    wishes: Wishes,
    place: str,
) -> Domain:
    labels = [rows[i].label for i in members]
    classes = tuple(sorted(set(labels)))
    number = {label: i for i, label in enumerate(classes)}
    images = ImageSet(source, np.array([number[label] for label in labels]), classes, np.asarray(members, np.int64))
    train, test = _cut(images, [parts[i] for i in members], wishes)
    for what, positions in (("training", train), ("test", test)):
        if not len(positions):
            raise DataError(f"{place}: domain {name!r} has no {what} image")
    return Domain(name, images.subset(train), images.subset(test))


def _cut(images: ImageSet, parts: Sequence[str], wishes: Wishes) -> tuple[IntArray, IntArray]:
    if not parts[0]:
        names = [images.name(i) for i in range(len(images))]
        return train_test_split(names, images.labels, wishes.split, wishes.seed)
    held_out = "test" if "test" in parts else "val"
    return tuple(np.flatnonzero([part == wanted for part in parts]) for wanted in ("train", held_out))  # type: ignore[return-value]
