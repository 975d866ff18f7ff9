"""Folders as streams: the layouts, their order on any file system, and one clear line for each bad folder."""

from __future__ import annotations

import os
import random
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from ductwork.data.domain import ImageSet
from ductwork.data.folders import folder_domain, folders, verify_readable
from ductwork.errors import ConfigError, DataError, DuctworkError

PNG = b""


@pytest.fixture(autouse=True, scope="module")
def _png(tmp_path_factory: pytest.TempPathFactory) -> None:
    global PNG
    path = tmp_path_factory.mktemp("png") / "a.png"
    Image.new("RGB", (4, 4), (255, 0, 0)).save(path)
    PNG = path.read_bytes()


def make(root: Path, *paths: str) -> Path:
    """Files below ``root``; ``a/*3`` stands for three images in ``a``, and a path that ends in / for a folder."""
    for path in paths:
        if path.endswith("/"):
            (root / path).mkdir(parents=True, exist_ok=True)
            continue
        parent, _, name = path.rpartition("/")
        files = [f"{i:03d}.png" for i in range(int(name[1:]))] if name.startswith("*") else [name]
        (root / parent).mkdir(parents=True, exist_ok=True)
        for file in files:
            (root / parent / file).write_bytes(PNG)
    return root


def named(images: ImageSet) -> dict[str, str]:
    return {images.name(i): images.label_name(i) for i in range(len(images))}


def test_domains_and_classes(tmp_path: Path) -> None:
    stream = folders(make(tmp_path / "photos", "street/cat/*10", "street/dog/*10", "art/cat/*10", "art/dog/*10"))
    assert (stream.name, stream.order, stream.classes) == ("photos", ("art", "street"), ("cat", "dog"))
    assert stream.transform == "backbone"
    art = stream[0]
    assert (len(art.train), len(art.test)) == (14, 6) and art.train.counts().tolist() == [7, 7]
    everything = named(art.train) | named(art.test)
    assert len(everything) == 20 and everything["art/cat/003.png"] == "cat"
    assert art.train.read(0).shape == (3, 4, 4)


def test_given_train_and_test_folders_and_mixed_layouts(tmp_path: Path) -> None:
    make(tmp_path, "a/train/x/*3", "a/train/y/*3", "a/test/x/*2", "b/x/*4", "b/y/*4")
    make(tmp_path, "c/Train/x/*1", "c/VAL/x/*1", "d/train/x/*1", "d/test/x/*1", "d/val/x/*5")
    a, b, c, d = folders(tmp_path)
    assert set(named(a.train)) == {f"a/train/{k}/{i:03d}.png" for k in "xy" for i in range(3)}
    assert named(a.test) == {"a/test/x/000.png": "x", "a/test/x/001.png": "x"}
    assert (len(b.train), len(b.test)) == (6, 2)
    assert set(named(c.test)) == {"c/VAL/x/000.png"} and set(named(d.test)) == {"d/test/x/000.png"}


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    stream = folders(make(tmp_path, "a/train/*4", "a/bus/*4", "b/train/*4"))
    assert stream.classes == ("bus", "train") and stream[1].classes == ("train",)


def test_domains_may_lack_classes_or_bring_new_ones(tmp_path: Path) -> None:
    a, b = folders(make(tmp_path, "a/x/*4", "a/y/*4", "b/y/*4", "b/z/*4"))
    assert a.classes == ("x", "y") and b.classes == ("y", "z")


def test_what_is_passed_over_and_what_is_found_deep(tmp_path: Path) -> None:
    make(
        tmp_path, "a/x/*2", "a/x/2019/may/*2", "a/x/UPPER.JPG", "a/y/*2", "b/x/*2", "readme.txt", ".DS_Store", "a/n.csv"
    )
    make(tmp_path, "a/x/.hidden.png", "a/x/.git/a.png", "a/x/@eaDir/a.png", "__MACOSX/a/x/b.png", ".cache/x/a.png")
    stream = folders(tmp_path)
    found = set(named(stream[0].train)) | set(named(stream[0].test))
    assert stream.order == ("a", "b")
    assert found == {f"a/{p}.png" for p in ("x/000", "x/001", "x/2019/may/000", "x/2019/may/001", "y/000", "y/001")} | {
        "a/x/UPPER.JPG"
    }


@pytest.fixture
def shuffled(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes os.scandir list folders in another order, as other file systems do."""
    listed = os.scandir

    class Shuffled:
        def __init__(self, path: Any, seed: int) -> None:
            with listed(path) as entries:
                self.entries = list(entries)
            random.Random(seed).shuffle(self.entries)

        def __enter__(self) -> Iterator[os.DirEntry[str]]:
            return iter(self.entries)

        def __exit__(self, *_: object) -> None: ...

    return lambda seed: monkeypatch.setattr(os, "scandir", lambda path: Shuffled(path, seed))


def test_the_order_of_a_listing_does_not_matter(tmp_path: Path, shuffled: Callable[[int], None]) -> None:
    make(tmp_path, *(f"{d}/{c}/*9" for d in "abc" for c in "xyz"), "d/train/x/*5", "d/train/y/*5", "d/test/x/*5")
    make(tmp_path, "a/x/deep/*3", "a/x/deeper/*3")
    plain = folders(tmp_path)
    for seed in range(3):
        shuffled(seed)
        again = folders(tmp_path)
        assert again.order == plain.order and again.fingerprint == plain.fingerprint
        for one, other in zip(plain, again, strict=True):
            assert list(named(one.train).items()) == list(named(other.train).items())
            assert one.test.labels.tolist() == other.test.labels.tolist()


def test_composed_and_decomposed_names_are_one(tmp_path: Path) -> None:
    composed, decomposed = (unicodedata.normalize(form, "Zoë/é") for form in ("NFC", "NFD"))
    for place, name in (("one", composed), ("two", decomposed)):
        make(tmp_path / place, f"{name}/*4", "Zz/e/*4")
    one, two = folders(tmp_path / "one", name="s"), folders(tmp_path / "two", name="s")
    assert one.order == two.order and one.fingerprint == two.fingerprint
    assert two[0].train.read(0).shape == (3, 4, 4)


def test_order_is_a_selection(tmp_path: Path) -> None:
    make(tmp_path, "a/x/*2", "a/y/*2", "b/x/*2", "2019/x/*2", "bad/")
    assert folders(tmp_path, order=["b", "a"]).order == ("b", "a")
    assert folders(tmp_path, order="a, 2019").order == ("a", "2019")
    assert folders(tmp_path, order=["a", 2019]).order == ("a", "2019")  # type: ignore[list-item]


def test_seed_and_ratio_of_the_split(tmp_path: Path) -> None:
    make(tmp_path, "a/x/*20", "a/y/*20")
    base = folders(tmp_path)
    assert base.fingerprint == folders(tmp_path).fingerprint != folders(tmp_path, seed=1).fingerprint
    assert len(folders(tmp_path, split=0.5)[0].train) == 20


def test_one_domain_alone_is_the_one_in_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "a/x/*9", "a/y/*9", "b/x/*2")
    alone = folder_domain(tmp_path / "a")
    assert alone.name == "a" and alone.train.fingerprint == folders(tmp_path)[0].train.fingerprint
    monkeypatch.chdir(tmp_path / "a")
    here = folder_domain(".", name="other")
    monkeypatch.chdir("/")
    assert here.name == "other" and here.train.fingerprint == alone.train.fingerprint and here.train.read(0).numel()


def test_links_to_domains_classes_and_images(tmp_path: Path) -> None:
    make(tmp_path / "elsewhere", "x/*3", "image.png")
    root = make(tmp_path / "root", "a/x/*3", "a/y/*3", "b/y/*3")
    (root / "c").symlink_to(tmp_path / "elsewhere/x/..", target_is_directory=True)
    (root / "b/x").symlink_to(root / "a/x", target_is_directory=True)
    (tmp_path / "elsewhere/image.png").rename(tmp_path / "image.png")
    (root / "b/y/z.png").symlink_to(tmp_path / "image.png")
    stream = folders(root)
    assert stream.order == ("a", "b", "c") and stream[2].train.name(0).startswith("c/x/")
    assert len(stream[1].train) + len(stream[1].test) == 7


def loop(root: Path) -> None:
    (make(root, "a/x/*2", "a/y/*2") / "a/x/up").symlink_to(root / "a", target_is_directory=True)


def knot(root: Path) -> None:
    (make(root, "a/x/*2", "a/y/*2") / "a/x/knot").symlink_to(root / "a/x/knot")


def dangling(root: Path) -> None:
    (make(root, "a/x/*2", "a/y/*2") / "a/x/b.png").symlink_to(root / "nowhere.png")


def not_unicode(root: Path) -> None:
    make(root, "a/x/*2", "a/y/*2")
    Path(os.fsdecode(os.fsencode(root / "a/x/") + b"/\xff.png")).write_bytes(PNG)


def two_forms(root: Path) -> None:
    make(root, "a/é/*2", unicodedata.normalize("NFD", "a/é/*2"))


BAD: list[tuple[list[str] | Callable[[Path], None], str]] = [
    ([], r"root: there is no such folder"),
    (["./"], r"root: no domain folder in here; expected <domain>/<class>/<image>"),
    (["readme.txt"], r"root: no domain folder in here"),
    (["a.png", "a/x/*2"], r"root/a\.png: this image lies outside of any domain; expected <domain>"),
    (["a/*2"], r"root/a/000\.png: this image lies outside of any class; expected <domain>"),
    (["a/x/*2", "a/b.png"], r"root/a/b\.png: this image lies outside of any class"),
    (["train/x/*2", "test/x/*2"], r"root: this is the folder of one domain"),
    (["a/x/*2", "a/y/*2", "b/"], r"root/b: no class folder in here"),
    (["a/x/*2", "a/y/"], r"root/a/y: no image in this class folder"),
    (["a/x/*2", "a/y/sub/", "a/y/notes.txt"], r"root/a/y: no image in this class folder"),
    (["a/x/*2", "b/x/*2"], r"root: all images are of one class, 'x'"),
    (["a/x/*1", "a/y/*1"], r"root/a: every class has a single image"),
    (["a/train/x/*2", "a/train/y/*2"], r"root/a: 'train' without 'test'"),
    (["a/test/x/*2"], r"root/a: 'test' without 'train'"),
    (["a/val/x/*2"], r"root/a: 'val' without 'train'"),
    (["a/train/x/*2", "a/test/x/*2", "a/test/y/*2"], r"root/a/test/y: class 'y' has test images but none in .*train"),
    (["a/train/x/*2", "a/test/x/*2", "a/extra/*2"], r"root/a/extra: lies beside 'train' and 'test'"),
    (["a/train/x/*2", "a/train/b.png", "a/test/x/*2"], r"a/train/b\.png: this image lies outside of any class"),
    (["a/training/x/*2", "a/testing/x/*2"], r"root/a/testing: call this folder 'train', 'test' or 'val'"),
    (["a/train/", "a/test/"], r"root/a/train: no class folder in here"),
    (["a/Cat/*2", "a/dog/*2", "b/cat/*2"], r"root/b/cat and .*root/a/Cat differ only in upper and lower case"),
    (["a/cat/*2", "a/cat /*2"], r"differ only in upper and lower case or blanks"),
    (["a/x/*2", "A/y/*2"], r"root/a and .*root/A differ only|root/A and .*root/a differ only"),
    (loop, r"root/a/x/up: this link leads back to a folder that it lies in"),
    (knot, r"root/a/x/knot: cannot be opened"),
    (dangling, r"root/a/x/b\.png: this link leads nowhere"),
    (not_unicode, r"not valid Unicode"),
    (two_forms, r"the same but for its Unicode form"),
]


@pytest.mark.parametrize(("build", "message"), BAD, ids=range(len(BAD)))
def test_bad_folders(tmp_path: Path, build: list[str] | Callable[[Path], None], message: str) -> None:
    root = tmp_path / "root"
    build(root) if callable(build) else make(root, *build)
    with pytest.raises(DataError, match=message) as caught:
        folders(root)
    assert "\n" not in str(caught.value)


def test_a_file_instead_of_a_folder_and_a_misspelt_one(tmp_path: Path) -> None:
    make(tmp_path, "photos/a/x/*2", "file.zip")
    with pytest.raises(DataError, match=r"file\.zip: this is a file, not a folder"):
        folders(tmp_path / "file.zip")
    with pytest.raises(DataError, match=r"phtos: there is no such folder \(did you mean 'photos'\?\)"):
        folders(tmp_path / "phtos")
    with pytest.raises(DataError, match=r"no/where: there is no such folder$"):
        folder_domain(tmp_path / "no/where")


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "a/x/*2")
    listed = os.scandir

    def denied(path: Any) -> Any:
        if str(path).endswith("x"):
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(DataError, match="a/x: no permission to list"):
        folders(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": ["a", "stret"]}, r"order names 'stret', which is no domain \(did you mean 'street'\?\)"),
        ({"order": ""}, "order names ''"),
        ({"order": ["a", "a"]}, "twice"),
        ({"split": 1.5}, "between 0 and 1"),
        ({"transform": "papr"}, r"unknown transform 'papr' \(did you mean 'paper'\?\)"),
    ],
)
def test_bad_settings(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    make(tmp_path, "a/x/*2", "a/y/*2", "street/x/*2")
    with pytest.raises(DuctworkError, match=message) as caught:
        folders(tmp_path, **options)
    assert isinstance(caught.value, ConfigError) or "twice" in message


def test_verify_readable(tmp_path: Path) -> None:
    make(tmp_path, "a/train/x/*3", "a/train/y/*3", "a/test/x/*3", "a/test/y/*3")
    stream = folders(tmp_path)
    assert verify_readable(stream) == 4 and verify_readable(stream, sample=None) == 12
    (tmp_path / "a/train/x/002.png").write_bytes(b"")
    assert verify_readable(stream) == 4
    with pytest.raises(DataError, match=r"x/002\.png: the image is empty \(0 bytes\); replace or remove it$"):
        verify_readable(stream, sample=None)
    (tmp_path / "a/test/y/000.png").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"x/002\.png.*\(and 1 more of the 12 images tried\)"):
        verify_readable(stream, sample=3)
