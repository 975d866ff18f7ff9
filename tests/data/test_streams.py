"""Streams by name and by path, and orders by names and by number."""

from __future__ import annotations

import ast
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ductwork.data import streams
from ductwork.data.streams import StreamInfo, available, digits, open_stream, orders_of, register
from ductwork.errors import ConfigError, DataError

NAMES = ("mnist", "usps", "svhn", "synth")


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small stand-in for the digits that come with ductwork."""

    def load(domain: str, split: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        n = {"train": 20, "test": 10}[split]
        return np.full((n, 32, 32, 3), NAMES.index(domain), np.uint8), np.arange(n, dtype=np.int64) % 10

    module = types.ModuleType("ductwork.data.digits")
    module.__dict__.update(domains=lambda: NAMES, load=load)
    monkeypatch.setitem(sys.modules, "ductwork.data.digits", module)
    import ductwork.data

    monkeypatch.setattr(ductwork.data, "digits", module, raising=False)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for place in ("a/x", "a/y", "b/x", "2/y"):
        (tmp_path / "photos" / place).mkdir(parents=True)
        for i in range(4):
            Image.new("RGB", (4, 4)).save(tmp_path / "photos" / place / f"{i}.png")
    return tmp_path / "photos"


def test_the_demo(embedded: None) -> None:
    stream = digits()
    assert (stream.name, stream.order, stream.transform) == ("demo", NAMES, "digits")
    assert stream.classes == tuple("0123456789")
    assert stream[0].train.name(12) == "mnist/train/00012" and len(stream[0].test) == 10
    assert stream[1].train.read(0).shape == (3, 32, 32)
    assert open_stream("demo").fingerprint == stream.fingerprint


def test_orders_of_the_demo(embedded: None) -> None:
    orders = orders_of("demo")
    assert len(set(orders)) == 5 and {frozenset(order) for order in orders} == {frozenset(NAMES)}
    assert orders[0] == NAMES and orders[3] == NAMES[::-1]
    assert digits(2).order == digits("2").order == open_stream("demo", order=2).order == orders[1]
    assert digits("svhn, mnist").order == digits(["svhn", "mnist"]).order == ("svhn", "mnist")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": 0}, "orders 1 to 5, not 0"),
        ({"order": "6"}, "orders 1 to 5, not 6"),
        ({"order": "minst,usps"}, r"no domain 'minst' \(did you mean 'mnist'\?\)"),
        ({"order": "usps,usps"}, "'usps' twice"),
        ({"order": []}, "names no domain"),
        ({"split": 0.5}, "split has no use here"),
        ({"root": "x"}, "root has no use here"),
        ({"transform": "nothing"}, "unknown transform 'nothing'"),
    ],
)
def test_what_the_demo_refuses(embedded: None, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_stream("demo", **options)


def test_transform_may_be_chosen(embedded: None, photos: Path) -> None:
    assert open_stream("demo", transform="unit").transform == "unit"
    assert open_stream(photos, transform="paper").transform == "paper"


def test_paths(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_stream(str(photos)).order == open_stream(photos).order == ("2", "a", "b")
    assert open_stream(photos, order="a,b").order == ("a", "b")
    assert open_stream(photos, order=["2", "a"]).order == ("2", "a")
    assert len(open_stream(photos, split=0.5)[1].train) == 4
    assert open_stream(photos, seed=1).fingerprint != open_stream(photos, seed=2).fingerprint
    monkeypatch.chdir(photos.parent)
    assert open_stream("photos").name == "photos"
    photos.rename(photos.parent / "demo")
    assert open_stream("./demo").order == ("2", "a", "b")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dmeo", r"there is no stream and no folder 'dmeo' \(did you mean 'demo'\?\)"),
        ("photso", r"no folder 'photso' \(did you mean 'photos'\?\)"),
        ("./photso", r"there is no folder '\./photso' \(did you mean 'photos'\?\)"),
        ("xyz", r"there is no stream and no folder 'xyz' \(known: .*demo"),
        ("no/where", r"there is no folder 'no/where'$"),
    ],
)
def test_unknown_names(photos: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str) -> None:
    monkeypatch.chdir(photos.parent)
    with pytest.raises(ConfigError, match=message) as caught:
        open_stream(name)
    assert "\n" not in str(caught.value)


def test_what_a_folder_refuses(photos: Path) -> None:
    with pytest.raises(ConfigError, match="root is for named streams"):
        open_stream(photos, root="x")
    with pytest.raises(ConfigError, match="order 1 is for named streams"):
        open_stream(photos, order=1)
    with pytest.raises(DataError, match="this is a file"):
        open_stream(photos / "a/x/0.png")
    with pytest.raises(ConfigError, match="no stream 'dmo'"):
        orders_of("dmo")


def test_registry(monkeypatch: pytest.MonkeyPatch, embedded: None) -> None:
    monkeypatch.setattr(streams, "_STREAMS", dict(streams._STREAMS))
    asked: list[object] = []

    def opened(*values: object) -> Any:
        asked.append(values)
        return digits()

    info = StreamInfo("mine", "about", "origin", opened, lambda: (("p", "q"), ("q", "p")))
    register(info)
    register(info)
    assert list(available()) == sorted(available()) and available()["mine"] is info
    open_stream("mine", root="r", order=2, split=0.4, seed=7)
    assert asked == [(Path("r"), ("q", "p"), 0.4, 7)]
    with pytest.raises(ValueError, match="two streams"):
        register(StreamInfo("mine", "else", "", opened, lambda: ()))


def test_importing_stays_light() -> None:
    """What costs seconds to import is imported where it is used."""
    for path in Path(streams.__file__).parent.glob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {"torchvision", "timm", "sklearn", "scipy"} & {name.split(".")[0] for name in names}, path.name


def test_the_real_digits() -> None:
    pytest.importorskip("ductwork.data.digits")
    stream = digits()
    assert stream.classes == tuple("0123456789") and len(set(orders_of("demo"))) == 5
    for domain in stream:
        assert domain.train.read(0).shape == (3, 32, 32) and len(domain.test)
