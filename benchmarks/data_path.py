"""How fast images come from disk, next to torchvision's ImageFolder and DataLoader with as many workers.

    python benchmarks/data_path.py [--images 5000] [--side 256] [--size 224] [--workers 1 2] [--repeats 3]

Both read the same generated JPEGs, cut random parts of them, flip and normalise them, in batches of 128 in a new order
each epoch. Nothing is learned: a batch is dropped as soon as it is there. Epochs of the two take turns, so that what
else the machine does hits both; a figure is a median, and what counts is the ratio. The cache is new in each repeat.
``memory`` is the growth of resident memory, this process and its workers together, pages shared by several counted
once, from the end of the second epoch to the end of the last.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

from ductwork.data.augment import fast_train_transform
from ductwork.data.cache import ImageCache
from ductwork.data.folders import folder_domain
from ductwork.data.loading import Loader
from ductwork.data.transforms import TransformSpec, kept_side, train_transform

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BATCH, CLASSES, LATER = 128, 10, 4


def make_images(root: Path, count: int, side: int) -> None:
    """Smooth colours with some grain, which compress to what photographs of this size do."""

    def make(number: int) -> None:
        draw = np.random.default_rng(number)
        coarse = Image.fromarray(draw.integers(0, 256, (12, 12, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((side, side), Image.Resampling.BICUBIC), np.int16)
        grain = draw.integers(-12, 13, (side, side, 1))
        folder = root / f"class{number % CLASSES}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((smooth + grain).clip(0, 255).astype(np.uint8)).save(folder / f"{number:05d}.jpg", quality=85)

    with ThreadPoolExecutor() as pool:
        list(pool.map(make, range(count)))


def their_epochs(root: Path, size: int, workers: int) -> Iterator[Callable[[], int]]:
    """torchvision's way, as its documentation writes it."""
    prepare = transforms.Compose(
        [
            transforms.RandomResizedCrop(size),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    loader = DataLoader(
        datasets.ImageFolder(str(root), prepare),
        BATCH,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    while True:
        yield lambda: sum(len(labels) for _, labels in loader)


def our_epochs(root: Path, cache: Path, size: int, workers: int) -> Iterator[Callable[[], int]]:
    """ductwork's: the first epoch includes the making of the cache."""
    spec = TransformSpec("paper", size, MEAN, STD)
    images = folder_domain(root, split=0.9999).train
    loaders: list[Loader] = []

    def first() -> int:
        cached, decoded = ImageCache(cache, 10**12).cached(images, kept_side(spec), workers=workers)
        assert decoded == len(images)
        loaders.append(Loader(cached, fast_train_transform(spec), batch_size=BATCH, workers=workers, shuffle=True))
        return sum(map(len, loaders[0].epoch(0)))

    yield first
    epoch = 0
    while True:
        epoch += 1
        yield lambda number=epoch: sum(map(len, loaders[0].epoch(number)))  # type: ignore[misc]


def plain_epochs(root: Path, size: int, workers: int) -> Iterator[Callable[[], int]]:
    """ductwork's with the cache off."""
    images = folder_domain(root, split=0.9999).train
    transform = train_transform(TransformSpec("paper", size, MEAN, STD))
    loader = Loader(images, transform, batch_size=BATCH, workers=workers, shuffle=True)
    epoch = 0
    while True:
        epoch += 1
        yield lambda number=epoch: sum(map(len, loader.epoch(number)))  # type: ignore[misc]


def memory() -> int:
    """Bytes of this process and of those that it started; what several share is counted once between them."""
    total, own = 0, os.getpid()
    for entry in os.listdir("/proc"):
        if entry.isdecimal() and (int(entry) == own or _parent(entry) == own):
            try:
                lines = Path("/proc", entry, "smaps_rollup").read_text().splitlines()
            except OSError:
                continue
            sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines[1:]}
            total += 1024 * (sizes["Pss_Anon"] + sizes["Pss_Shmem"])  # pages of files may be dropped at any time
    return total


def _parent(process: str) -> int:
    try:
        return int(Path("/proc", process, "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return -1


def measure(root: Path, size: int, workers: int, *, plain: bool) -> dict[str, tuple[float, list[float], float]]:
    """Seconds per image of the first and of the later epochs, and the growth of memory, by contender."""
    with tempfile.TemporaryDirectory() as cache:
        contenders = {"torchvision": their_epochs(root, size, workers)}
        contenders["ductwork"] = our_epochs(root, Path(cache), size, workers)
        if plain:
            contenders["cache off"] = plain_epochs(root, size, workers)
        times: dict[str, list[float]] = {name: [] for name in contenders}
        sizes: dict[str, list[int]] = {name: [] for name in contenders}
        for _ in range(1 + LATER):
            for name, epochs in contenders.items():
                epoch = next(epochs)
                start = time.perf_counter()
                images = epoch()
                times[name].append((time.perf_counter() - start) / images)
                sizes[name].append(memory())
    return {name: (t[0], t[1:], float(sizes[name][-1] - sizes[name][1])) for name, t in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--side", type=int, default=256, help="of the JPEGs")
    parser.add_argument("--size", type=int, default=224, help="of what comes out")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--plain", action="store_true", help="also measure ductwork with the cache off")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "images")
        make_images(root, options.images, options.side)
        for workers in options.workers:
            runs = [measure(root, options.size, workers, plain=options.plain) for _ in range(options.repeats)]
            report(workers, runs)


def report(workers: int, runs: list[dict[str, tuple[float, list[float], float]]]) -> None:
    theirs = [run["torchvision"] for run in runs]
    for name in runs[0]:
        ours = [run[name] for run in runs]
        first = statistics.median(their[0] / our[0] for their, our in zip(theirs, ours, strict=True))
        pairs = [pair for their, our in zip(theirs, ours, strict=True) for pair in zip(their[1], our[1], strict=True)]
        later = statistics.median(their / our for their, our in pairs)
        ms = [1e3 * statistics.median(times) for times in ([our[0] for our in ours], [our for _, our in pairs])]
        grown = max(run[name][2] for run in runs) / 1e6
        print(
            f"{workers} workers  {name:12} ms an image: first epoch {ms[0]:.2f}, later {ms[1]:.2f}   "
            f"times torchvision's speed: first {first:.2f}, later {later:.1f}   memory {grown:+.0f} MB",
            flush=True,
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
