"""A cache that is killed, damaged, full, shared or out of date: what is read from it is the image all the same."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import resource
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ductwork.data import cache as cache_module
from ductwork.data.augment import fast_train_transform
from ductwork.data.cache import CachedSource, ImageCache, Watcher, shrunk
from ductwork.data.domain import ArraySource, ImageSet
from ductwork.data.images import FileSource
from ductwork.data.loading import Loader
from ductwork.data.shards import Store, key_of, read_index, write_shard
from ductwork.data.transforms import TransformSpec, kept_side, test_transform
from ductwork.errors import DataError

SIDE = 24
SPEC = TransformSpec("paper", 16, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
FORK = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "_CHUNK", 10)


def paint(path: Path, seed: int, height: int, width: int) -> None:
    draw = np.random.default_rng(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(draw.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(path)


def folder_of(root: Path, n: int = 45) -> ImageSet:
    """Images of many sizes, some of them smaller than what is kept."""
    names = tuple(f"a/{i:03d}.png" for i in range(n))
    for i, name in enumerate(names):
        paint(root / name, i, 16 + i % 20, 20 + 3 * (i % 7))
    time.sleep(0.05)  # what was written this very moment is not looked up a second time
    return ImageSet(FileSource(str(root), names), np.arange(n) % 2, ("x", "y"))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageSet:
    return folder_of(tmp_path_factory.mktemp("images"))


def truth(images: ImageSet) -> list[torch.Tensor]:
    return [torch.from_numpy(shrunk(images.read(i), SIDE)).permute(2, 0, 1) for i in range(len(images))]


def right(cached: ImageSet, images: ImageSet) -> bool:
    return all(torch.equal(cached.read(i), pixels) for i, pixels in enumerate(truth(images)))


def missing(cached: ImageSet) -> int:
    assert isinstance(cached.source, CachedSource)
    return cached.source.missing


def open_cache(folder: Path, limit: int = 10**9) -> ImageCache:
    return ImageCache(folder / "cache", limit)


def shards(folder: Path) -> list[Path]:
    return sorted((folder / "cache").rglob("*.shard"))


@pytest.mark.parametrize("workers", [0, 2])
def test_images_are_decoded_once(images: ImageSet, tmp_path: Path, workers: int) -> None:
    first, decoded = open_cache(tmp_path).cached(images, SIDE, workers=workers)
    again, none = open_cache(tmp_path).cached(images, SIDE, workers=workers)
    assert (decoded, none, missing(again), len(shards(tmp_path))) == (45, 0, 0, 5)
    assert right(first, images) and right(again, images)
    assert [again.name(i) for i in range(45)] == [images.name(i) for i in range(45)]
    assert again.fingerprint == images.fingerprint and again.labels.tolist() == images.labels.tolist()
    part, none = open_cache(tmp_path).cached(images.subset([7, 3, 3]), SIDE)
    assert none == 0 and right(part, images.subset([7, 3, 3]))
    copy = pickle.loads(pickle.dumps(again))
    assert right(copy, images) and missing(copy) == 0


def test_smaller_images_stay_as_they_are_and_others_keep_their_shape(images: ImageSet) -> None:
    pixels = torch.randint(0, 256, (3, 30, 90), dtype=torch.uint8)
    assert shrunk(pixels, 30).shape == (30, 90, 3) and torch.equal(
        torch.from_numpy(shrunk(pixels, 40)).permute(2, 0, 1), pixels
    )
    assert shrunk(pixels, 10).shape == (10, 30, 3) and shrunk(pixels.permute(0, 2, 1), 10).shape == (30, 10, 3)


def test_the_side_suits_the_recipe() -> None:
    paper = TransformSpec("paper", 224, SPEC.mean, SPEC.std)
    side = kept_side(paper)
    assert side == 402 + 1
    enlarged = np.mean(np.sqrt(np.linspace(*paper.scale, 10_001)) * side < paper.size)
    assert 0.24 < enlarged < 0.26
    assert kept_side(TransformSpec("x", 224, SPEC.mean, SPEC.std, crop_pct=0.5, scale=(0.9, 1.0))) == 448
    assert kept_side(TransformSpec("digits", 28, SPEC.mean, SPEC.std, affine=True)) == 56


@pytest.mark.parametrize(("workers", "start"), [(0, None), (2, "fork"), (1, "spawn")])
def test_batches_are_the_same_from_the_cache_and_without(
    images: ImageSet, tmp_path: Path, workers: int, start: str | None
) -> None:
    full = open_cache(tmp_path).cached(images, SIDE)[0]
    (tmp_path / "file").touch()
    empty = ImageCache(tmp_path / "file", 10**9).cached(images, SIDE)[0]
    for transform in (fast_train_transform(SPEC), test_transform(SPEC)):
        with_it = Loader(full, transform, batch_size=8, shuffle=True, workers=workers, start_method=start)
        without = Loader(empty, transform, batch_size=8, shuffle=True)
        for epoch in range(2):
            for one, other in zip(with_it.epoch(epoch), without.epoch(epoch), strict=True):
                assert torch.equal(one.inputs, other.inputs) and torch.equal(one.index, other.index)
        assert (with_it.decoded, with_it.decodes, without.decoded, without.decodes) == (0, 0, 90, 45)
        with_it.close()


def test_ten_kills_at_random_moments_never_give_a_wrong_image(tmp_path: Path) -> None:
    images = folder_of(tmp_path / "images", 300)
    expected = truth(images)
    start = time.monotonic()
    open_cache(tmp_path / "unbroken").cached(images, SIDE)
    whole = time.monotonic() - start
    chance, unfinished = random.Random(), 0
    for kill in range(10):
        folder = tmp_path / f"{kill // 2}"  # every other one goes on where the one before was killed
        builder = FORK.Process(target=open_cache(folder).cached, args=(images, SIDE))
        builder.start()
        time.sleep(chance.uniform(0.0, 0.8 * whole))
        builder.kill()
        builder.join()
        store = Store(next((folder / "cache").glob("24px-*"), folder), 10**9)
        store.refresh()
        keys = np.stack([key_of(images.source.evidence(i)) for i in range(len(images))])  # type: ignore[attr-defined]
        source = CachedSource(images, SIDE, np.ones(300, bool), store.find(keys))
        unfinished += 0 < source.missing < len(images)
        assert all(torch.equal(source.read(i), expected[i]) for i in range(len(images)))
    assert unfinished, "no kill came while images were being written"
    last, decoded = open_cache(tmp_path / "4").cached(images, SIDE)
    assert decoded == source.missing and missing(last) == 0
    assert all(torch.equal(last.read(i), expected[i]) for i in range(len(images)))


def test_processes_that_build_at_once_share_the_work(images: ImageSet, tmp_path: Path) -> None:
    counts = FORK.SimpleQueue()

    def build(workers: int) -> None:
        cached, decoded = open_cache(tmp_path).cached(images, SIDE, workers=workers)
        counts.put((decoded, missing(cached), right(cached, images)))

    builders = [FORK.Process(target=build, args=(workers,)) for workers in (0, 0, 1)]
    for builder in builders:
        builder.start()
    results = [counts.get() for _ in builders]
    for builder in builders:
        builder.join()
    assert sum(decoded for decoded, _, _ in results) == 45
    assert all(rest == 0 and good for _, rest, good in results)


def _can_be_built(store: Store, name: str) -> bool:
    with store.building(name) as part:
        return part is not None


def test_a_builder_that_is_killed_while_others_wait_for_it(images: ImageSet, tmp_path: Path) -> None:
    store = open_cache(tmp_path)._store(SIDE)
    keys = np.stack([key_of(images.source.evidence(i)) for i in range(45)])  # type: ignore[attr-defined]
    tasks = cache_module._tasks(keys, np.ones(45, bool))
    task = tasks[2]
    with store.building(task.name):  # this one, and whatever must be built at the same place by chance
        held = [other for other in tasks if not _can_be_built(store, other.name)]
    ready = FORK.SimpleQueue()

    def sleep_on_it() -> None:
        with store.building(task.name) as part:
            assert part is not None
            part.write_bytes(b"half a sh")
            ready.put(True)
            time.sleep(60)

    sleeper = FORK.Process(target=sleep_on_it)
    sleeper.start()
    ready.get()
    waiting = FORK.SimpleQueue()
    builder = FORK.Process(target=lambda: waiting.put(open_cache(tmp_path).cached(images, SIDE)[1]))
    builder.start()
    deadline = time.monotonic() + 30
    while len(shards(tmp_path)) < 5 - len(held) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.3)
    assert len(shards(tmp_path)) == 5 - len(held) and builder.is_alive()
    sleeper.kill()
    assert waiting.get() == 45
    builder.join()
    assert right(open_cache(tmp_path).cached(images, SIDE)[0], images)


@pytest.mark.parametrize("fault", ["flipped", "cut", "empty", "index", "gone"])
def test_damage_is_noticed_and_repaired(images: ImageSet, tmp_path: Path, fault: str) -> None:
    built = open_cache(tmp_path).cached(images, SIDE)[0]
    victim = shards(tmp_path)[2]
    content = bytearray(victim.read_bytes())
    if fault == "gone":
        victim.unlink()
    else:
        content[{"flipped": 100, "index": -60}.get(fault, 0)] ^= 1
        victim.write_bytes(content[: {"cut": len(content) // 2, "empty": 0}.get(fault, len(content))])
    if fault in ("flipped", "gone"):  # what is mapped already must not be cut by anybody, and is not by us
        assert right(built, images)
    opened = open_cache(tmp_path).cached(images, SIDE)[0]
    assert right(opened, images) and missing(opened) == 0  # of a flipped bit nobody knows before the image is read
    repaired = open_cache(tmp_path).cached(images, SIDE)[0]
    assert missing(repaired) == 0 and right(repaired, images)


def test_a_changed_image_is_another_image(tmp_path: Path) -> None:
    images = folder_of(tmp_path / "images", 5)
    open_cache(tmp_path).cached(images, SIDE)
    path = tmp_path / "images" / "a" / "003.png"
    before, size = path.stat(), path.stat().st_size
    pixels = np.asarray(Image.open(path)).copy()
    Image.fromarray(255 - pixels).save(path)
    path.write_bytes(path.read_bytes().ljust(size, b"\0")[: max(size, path.stat().st_size)])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    changed, decoded = open_cache(tmp_path).cached(images, SIDE)
    assert decoded == 1 and right(changed, images)


def test_a_file_that_was_written_just_now_is_looked_at_again(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    source = FileSource(str(tmp_path), ("a.png",))
    paint(path, 0, 9, 9)
    fresh = {source.evidence(0) for _ in range(3)}
    time.sleep(0.05)
    assert len(fresh) == 3 and source.evidence(0) == source.evidence(0)


def test_an_unreadable_image_is_reported_in_its_place(tmp_path: Path) -> None:
    images = folder_of(tmp_path / "images", 12)
    (tmp_path / "images" / "a" / "004.png").write_bytes(b"\x89PNG broken")
    (tmp_path / "images" / "a" / "007.png").unlink()
    cached, decoded = open_cache(tmp_path).cached(images, SIDE)
    assert decoded == 10 and missing(cached) == 2
    for position in (4, 7):
        with pytest.raises(DataError, match=f"00{position}.png"):
            cached.read(position)
    assert torch.equal(cached.read(5), truth(images.subset([5]))[0])


def test_a_full_cache_says_so_and_gives_the_same_images(images: ImageSet, tmp_path: Path) -> None:
    said: list[str] = []
    small = open_cache(tmp_path, limit=40_000)
    cached, decoded = small.cached(images, SIDE, watcher=Watcher(say=said.append))
    kept = sum(path.stat().st_size for path in shards(tmp_path))
    assert 0 < kept <= 40_000 and 0 < missing(cached) < 45 and decoded < 45
    assert len(said) == 1 and "takes no more, it is full" in said[0]
    assert right(cached, images)


def test_what_was_used_longest_ago_makes_room(images: ImageSet, tmp_path: Path) -> None:
    parts = [images.subset(np.arange(start, start + 15)) for start in (0, 15, 30)]
    limit = 3 * 15 * (SIDE * 40 * 3) // 2
    cache = open_cache(tmp_path, limit)
    first = cache.cached(parts[0], SIDE)[0]
    cache.cached(parts[1], SIDE)
    time.sleep(0.05)
    assert cache.cached(parts[0], SIDE)[1] == 0  # used again: now the second is the oldest
    time.sleep(0.05)
    last, decoded = cache.cached(parts[2], SIDE)
    assert decoded == 15 and missing(last) == 0
    assert sum(path.stat().st_size for path in shards(tmp_path)) <= limit
    assert cache.cached(parts[1], SIDE)[1] > 0 and right(first, parts[0])


def test_a_disk_that_is_full_costs_time_only(images: ImageSet, tmp_path: Path) -> None:
    told = FORK.SimpleQueue()

    def build() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, 9_000))  # writing more fails, as on a full disk
        said: list[str] = []
        cached, _ = open_cache(tmp_path).cached(images, SIDE, watcher=Watcher(say=said.append))
        told.put((missing(cached), right(cached, images), said))

    builder = FORK.Process(target=build)
    builder.start()
    rest, good, said = told.get()
    builder.join()
    assert rest == 45 and good and len(said) == 1
    assert not list((tmp_path / "cache").rglob("*.part"))


def test_a_folder_that_cannot_be_written_costs_time_only(images: ImageSet, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("not a folder")
    said: list[str] = []
    cached, _ = open_cache(tmp_path).cached(images, SIDE, watcher=Watcher(say=said.append))
    assert missing(cached) == 45 and right(cached, images)
    assert len(said) == 1 and "decoded each time" in said[0]


def test_arrays_are_left_alone_also_among_files(images: ImageSet, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 60, 60, 3), dtype=np.uint8)
    arrays = ImageSet(ArraySource(pixels, tuple("abcd")), np.zeros(4, int), ("x", "y"))
    cache = open_cache(tmp_path)
    assert cache.cached(arrays, SIDE) == (arrays, 0)
    both, decoded = cache.cached(ImageSet.concat([arrays, images]), SIDE)
    assert decoded == 45 and missing(both) == 4
    assert torch.equal(both.read(1), arrays.read(1)) and torch.equal(both.read(4 + 9), truth(images)[9])


def test_shards_describe_themselves(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    pixels = [draw.integers(0, 256, (h, w, 3), dtype=np.uint8) for h, w in ((3, 5), (7, 2))]
    keys = [key_of(name) for name in "ab"]
    assert write_shard(tmp_path / "s", iter(zip(keys, pixels, strict=True))) == 2
    index = read_index(tmp_path / "s")
    assert index is not None
    assert index["height"].tolist() == [3, 7] and index["offset"].tolist() == [0, 45]
    assert (index["key"] == np.stack(keys)).all()
    assert write_shard(tmp_path / "none", iter(())) == 0
    none = read_index(tmp_path / "none")
    assert none is not None and len(none) == 0 and read_index(tmp_path / "nothing there") is None


@pytest.fixture(autouse=True)
def _tidy(tmp_path: Path) -> Iterator[None]:
    yield
    shutil.rmtree(tmp_path, ignore_errors=True)
