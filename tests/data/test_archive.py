"""Streams from tar shards."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
from pathlib import Path

import pytest
import torch

from ductwork.data.cache import ImageCache
from ductwork.data.images import read_image
from ductwork.data.inspect import check
from ductwork.data.streams import open_stream
from ductwork.errors import ConfigError, DataError
from tests.data.miniatures import picture

Members = dict[str, bytes]


def image(folder: Path, seed: int) -> bytes:
    picture(folder / "x.png", seed)
    return (folder / "x.png").read_bytes()


def shard(path: Path, members: Members) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


def described(folder: Path, start: int, n: int = 8) -> Members:
    """Samples that say everything themselves."""
    found: Members = {}
    for seed in range(start, start + n):
        said = {"label": "cat" if seed % 2 else "dog", "domain": "day", "split": "test" if seed % 4 > 1 else "train"}
        found[f"{seed:03d}.png"] = image(folder, seed)
        found[f"{seed:03d}.json"] = json.dumps(said | {"caption": "a"}).encode()
    return found


def worded(folder: Path, start: int, within: str = "", n: int = 8) -> Members:
    """Samples that say their label only."""
    found: Members = {}
    for seed in range(start, start + n):
        found[f"{within}{seed:03d}.png"] = image(folder, seed)
        found[f"{within}{seed:03d}.cls"] = f"{seed % 2}\n".encode()
    return found


def test_a_shard_whose_samples_say_everything(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    stream = open_stream(shard(tmp_path / "a" / "photos.tar", described(tmp_path, 0)))
    assert (stream.name, stream.order, stream.classes) == ("photos", ("day",), ("cat", "dog"))
    domain = stream[0]
    assert [domain.train.name(i) for i in range(4)] == [f"photos.tar/00{i}.png" for i in (0, 1, 4, 5)]
    for images in (domain.train, domain.test):
        for i in range(len(images)):
            seed = int(images.name(i)[-7:-4])
            picture(tmp_path / "y.png", seed)
            assert torch.equal(images.read(i), read_image(tmp_path / "y.png"))
            assert images.label_name(i) == ("cat" if seed % 2 else "dog")


def test_folders_and_names_of_shards_say_domain_and_split(tmp_path: Path) -> None:
    root = tmp_path / "shards"
    for number, domain in enumerate(("day", "night")):
        for at, part in enumerate(("train-000", "train-001", "test-000")):
            shard(root / domain / f"{part}.tar", worded(tmp_path, 100 * number + 10 * at))
    stream = open_stream(root, order="night,day")
    assert stream.order == ("night", "day") and stream.classes == ("0", "1")
    assert [(len(d.train), len(d.test)) for d in stream] == [(16, 8), (16, 8)]
    assert stream[1].test.name(0) == "day/test-000.tar/020.png"
    assert open_stream(root).fingerprint == stream.fingerprint


def test_folders_within_a_shard_say_the_domain(tmp_path: Path) -> None:
    members = worded(tmp_path, 0, "day/") | worded(tmp_path, 8, "night/")
    stream = open_stream(shard(tmp_path / "all.tar", members), split=0.5)
    assert [(d.name, len(d.train), len(d.test)) for d in stream] == [("day", 4, 4), ("night", 4, 4)]


def test_the_order_within_a_shard_does_not_matter_and_other_members_are_not_opened(tmp_path: Path) -> None:
    members = described(tmp_path, 0) | {"000.pyd": b"cos\nsystem\n", "000.seg.png": b"no image", "README": b"hello"}
    one = open_stream(shard(tmp_path / "1" / "a.tar", members))
    other = open_stream(shard(tmp_path / "2" / "a.tar", dict(reversed(members.items()))))
    assert one.fingerprint == other.fingerprint
    assert [one[0].train.name(i) for i in range(4)] == [other[0].train.name(i) for i in range(4)]


def test_images_of_shards_are_cached_and_travel_to_workers(tmp_path: Path) -> None:
    images = open_stream(shard(tmp_path / "a.tar", described(tmp_path, 0)))[0].train
    images.source.evidence(0)  # type: ignore[attr-defined]
    cached, decoded = ImageCache(tmp_path / "cache", 10**9).cached(images, 16)
    assert decoded == 4 and cached.read(2).shape == (3, 16, 16)
    assert torch.equal(pickle.loads(pickle.dumps(images)).read(1), images.read(1))


def test_a_folder_of_images_is_none_of_shards(tmp_path: Path) -> None:
    for domain in ("day", "night"):
        for label in ("cat", "dog"):
            for seed in range(3):
                picture(tmp_path / "photos" / domain / label / f"{seed}.png", seed)
    shard(tmp_path / "photos" / "backup.tar", worded(tmp_path, 0))
    assert open_stream(tmp_path / "photos").order == ("day", "night")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"001.json": b'{"label": "cat"}'}, "001: no domain; say it in .json or .domain"),
        ({"001.json": b'{"domain": "day"}'}, "001: no label; say it in .cls, .txt or .json"),
        ({"001.json": b"{"}, r"001\.json: is not what its name says"),
        ({"001.json": b'{"label": "cat", "domain": "day", "split": "later"}'}, "001: split is 'later'"),
        ({"001.jpg": b"x"}, "001: two images in one sample"),
    ],
)
def test_faults_are_named(tmp_path: Path, change: Members, message: str) -> None:
    path = shard(tmp_path / "a.tar", described(tmp_path, 0) | change)
    with pytest.raises(DataError, match=message):
        open_stream(path)


def test_damaged_shards(tmp_path: Path) -> None:
    path = shard(tmp_path / "a.tar", described(tmp_path, 0))
    whole = path.read_bytes()
    for content, message in [
        (whole[: len(whole) // 3], "cut off|damaged"),
        (b"no tar at all" * 100, "no plain tar"),
        (b"", "no plain tar|no sample"),
    ]:
        path.write_bytes(content)
        with pytest.raises(DataError, match=message):
            open_stream(path)
    path.unlink()
    with tarfile.open(tmp_path / "b.tar.gz", "w:gz"):
        pass
    with pytest.raises(DataError, match="unpack compressed shards first"):
        open_stream(tmp_path / "b.tar.gz")
    with pytest.raises(ConfigError, match="there is no"):
        open_stream(tmp_path / "c.tar")


def test_check_looks_into_shards(tmp_path: Path) -> None:
    members = described(tmp_path, 0)
    members["002.png"] = members["002.png"][:60]
    members["004.png"] = b""
    members["005.png"] = members["007.png"]
    found = check(str(shard(tmp_path / "a.tar", members)))
    assert {(f.kind, f.where[0][-7:]) for f in found if f.severity == "error"} == {
        ("truncated", "002.png"),
        ("empty", "004.png"),
        ("leak", "005.png"),
    }
