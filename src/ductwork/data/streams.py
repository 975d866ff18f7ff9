"""Streams by name: what ``dw.streams`` offers and what ``stream:`` means in a configuration.

A benchmark adds itself with one more file that calls :func:`register`, and a line in ``_MODULES``.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ductwork.data.archive import has_shards, webdataset
from ductwork.data.domain import ArraySource, Domain, ImageSet, Stream
from ductwork.data.folders import folder_domain, folders, verify_readable
from ductwork.data.saved import is_saved_dataset, saved_dataset
from ductwork.data.table import TABLES, table
from ductwork.data.transforms import check_name
from ductwork.errors import ConfigError, suggest

__all__ = [
    "StreamInfo",
    "available",
    "digits",
    "folder_domain",
    "folders",
    "open_stream",
    "opener_of",
    "orders_of",
    "register",
    "saved_dataset",
    "table",
    "verify_readable",
    "webdataset",
]

#: The domains of a stream in the order in which they shall be learned: names, "a,b,c", or the N-th predefined order.
Order = Sequence[str] | str | int

_MODULES: tuple[str, ...] = (  # each registers its streams when it is imported
    "ductwork.data.cddb",
    "ductwork.data.core50",
    "ductwork.data.domainnet",
    "ductwork.data.officehome",
)


@dataclass(frozen=True)
class StreamInfo:
    """A stream that has a name. ``open`` is called with root, order, split and seed; it refuses what it cannot use.

    ``orders`` gives the predefined orders; the first one is what a user gets who asks for none.
    """

    name: str
    about: str
    origin: str
    open: Callable[[Path | None, tuple[str, ...], float | None, int], Stream]
    orders: Callable[[], tuple[tuple[str, ...], ...]]


_STREAMS: dict[str, StreamInfo] = {}


def register(info: StreamInfo) -> StreamInfo:
    """Make a stream known by its name."""
    if info.name in _STREAMS and _STREAMS[info.name] != info:
        raise ValueError(f"two streams are called {info.name!r}")
    _STREAMS[info.name] = info
    return info


def available() -> Mapping[str, StreamInfo]:
    """The named streams, sorted: what is in them and where the data come from."""
    for module in _MODULES:
        importlib.import_module(module)
    return dict(sorted(_STREAMS.items()))


def orders_of(name: str) -> tuple[tuple[str, ...], ...]:
    """The predefined orders of a named stream; number N is at place N - 1."""
    known = available()
    if name not in known:
        raise ConfigError(f"there is no stream {name!r}{suggest(name, known)}")
    return known[name].orders()


def open_stream(
    name_or_path: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    order: Order | None = None,
    split: float | None = None,
    seed: int = 1993,
    transform: str | None = None,
) -> Stream:
    """The stream of that name, or of the data at that path: see :func:`opener_of`.

    ``root`` is where the data of a named stream lie, ``split`` the share of training images where a stream has no
    split of its own (0.7 unless given) and ``seed`` chooses which images these are. A name wins over a folder of the
    same name; write ``./name`` for the folder.
    """
    known = available()
    info = known.get(name_or_path) if isinstance(name_or_path, str) else None
    if info is not None:
        place = None if root is None else Path(root).expanduser()
        stream = info.open(place, _named_order(info, order), split, seed)
        return stream if transform is None else replace(stream, transform=check_name(transform))
    path = Path(name_or_path).expanduser()
    if not os.path.lexists(path):
        raise ConfigError(_unknown(name_or_path, path, known))
    if root is not None:
        raise ConfigError(f"root is for named streams; {str(path)!r} says where the data lie")
    if isinstance(order, int):
        raise ConfigError(f"order {order} is for named streams; write the names of the domains in {str(path)!r}")
    wanted = 0.7 if split is None else split
    return opener_of(path)(path, order=order, split=wanted, seed=seed, transform=transform)


def opener_of(path: Path) -> Callable[..., Stream]:
    """What opens the data at a path: :func:`folders`, :func:`table`, :func:`webdataset` or :func:`saved_dataset`."""
    if path.suffix.lower() in TABLES and not path.is_dir():
        return table
    if is_saved_dataset(path):
        return saved_dataset
    return webdataset if has_shards(path) else folders


def digits(order: Order | None = None) -> Stream:
    """The demo: ten digits in several looks, small enough to come with ductwork."""
    return _open_digits(None, _named_order(_DEMO, order), None, 0)


def _open_digits(root: Path | None, order: tuple[str, ...], split: float | None, seed: int) -> Stream:
    import ductwork.data.digits as embedded

    if root is not None or split is not None:
        what = "root" if root is not None else "split"
        raise ConfigError(f"the stream 'demo' comes with ductwork and has its own split: {what} has no use here")
    classes = tuple(str(digit) for digit in range(10))

    def images(domain: str, split: Literal["train", "test"]) -> ImageSet:
        pixels, labels = embedded.load(domain, split)
        names = tuple(f"{domain}/{split}/{i:05d}" for i in range(len(pixels)))
        return ImageSet(ArraySource(pixels, names), labels, classes)

    domains = tuple(Domain(name, images(name, "train"), images(name, "test")) for name in order)
    return Stream("demo", domains, transform="digits")


def _digit_orders() -> tuple[tuple[str, ...], ...]:
    """As listed, begun at the second and at the third domain, backwards, and backwards from the third last."""
    import ductwork.data.digits as embedded

    listed = tuple(embedded.domains())
    back = listed[::-1]
    return listed, listed[1:] + listed[:1], listed[2:] + listed[:2], back, back[2:] + back[:2]


def _named_order(info: StreamInfo, order: Order | None) -> tuple[str, ...]:
    """What ``order`` means for a named stream, as names of domains."""
    orders = info.orders()
    if order is None:
        return orders[0]
    if isinstance(order, int) or (isinstance(order, str) and order.strip().isdecimal()):
        number = int(order)
        if not 1 <= number <= len(orders):
            raise ConfigError(f"stream {info.name!r} has orders 1 to {len(orders)}, not {number}")
        return orders[number - 1]
    names = tuple(str(part).strip() for part in (order.split(",") if isinstance(order, str) else order))
    for at, name in enumerate(names):
        if name not in orders[0]:
            raise ConfigError(f"stream {info.name!r} has no domain {name!r}{suggest(name, orders[0])}")
        if name in names[:at]:
            raise ConfigError(f"order names the domain {name!r} twice")
    if not names:
        raise ConfigError(f"order names no domain of the stream {info.name!r}{suggest('', orders[0])}")
    return names


def _unknown(asked: str | os.PathLike[str], path: Path, known: Mapping[str, StreamInfo]) -> str:
    written = os.fspath(asked)
    near = list(_folders_near(path))
    if os.path.dirname(written):
        hint = suggest(path.name, near)
        return f"there is no folder {written!r}{hint if 'did you mean' in hint else ''}"
    hint = suggest(written, [*known, *near])
    if "did you mean" not in hint:
        hint = suggest("", known)
    return f"there is no stream and no folder {written!r}{hint}"


def _folders_near(path: Path) -> Iterator[str]:
    try:
        with os.scandir(path.parent) as entries:
            yield from (entry.name for entry in entries if entry.is_dir())
    except OSError:
        return


_DEMO = register(
    StreamInfo(
        "demo",
        "ten digits, printed and written in several looks",
        "comes with ductwork, nothing to download",
        _open_digits,
        _digit_orders,
    )
)
