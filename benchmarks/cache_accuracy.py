"""Whether learning from the cache, with its smaller images and its own draws, gives what the plain pipeline gives.

    python benchmarks/cache_accuracy.py [--seeds 3] [--train 600] [--epochs 8]

The first three domains of the demo become JPEGs of 120 x 120, more than three times what the network sees, so that the
cache makes every image smaller. DUCT learns them with random parts and flips, with the cache and without, once for each
seed; what is printed is the mean and the standard deviation over seeds, of accuracy in percent.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
from PIL import Image

import ductwork as dw
from ductwork.data.domain import ImageSet
from ductwork.engine.settings import EngineSettings

SIDE, DOMAINS = 120, 3


def save(images: ImageSet, folder: Path, count: int) -> None:
    for i in np.random.default_rng(0).permutation(len(images))[:count].tolist():
        path = folder / images.label_name(i) / f"{i:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = images.read(i).permute(1, 2, 0).numpy()
        Image.fromarray(pixels).resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(path, quality=90)


def learn(root: Path, cache: Path, seed: int, epochs: int, *, cached: bool) -> tuple[float, float]:
    """Mean and last accuracy over the stages."""
    stream = dw.streams.folders(root)
    settings = EngineSettings(accelerator="cpu", precision="fp32", workers=1, cache=cached, cache_dir=cache)
    learner = dw.Learner("duct", params={"epochs": epochs}, seed=seed, settings=settings)
    reports = [learner.learn(domain, tests=stream.seen(domain)) for domain in stream]
    accuracy = [report.evaluation["A_b"] for report in reports if report.evaluation]
    decoded = sum(report.work["decoded"] for report in reports)
    print(
        f"seed {seed}  cache {'on ' if cached else 'off'}  A_b {accuracy[-1]:.2f}  images decoded {decoded}", flush=True
    )
    return statistics.mean(accuracy), accuracy[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--train", type=int, default=600, help="training images of a domain")
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root, cache = Path(folder, "digits"), Path(folder, "cache")
        for domain in dw.streams.digits()[:DOMAINS]:
            save(domain.train, root / domain.name / "train", options.train)
            save(domain.test, root / domain.name / "test", len(domain.test))
        for cached in (True, False):
            runs = [learn(root, cache, 1993 + i, options.epochs, cached=cached) for i in range(options.seeds)]
            for name, values in zip(("A_bar", "A_B"), zip(*runs, strict=True), strict=True):
                spread = statistics.stdev(values) if len(values) > 1 else 0.0
                print(
                    f"cache {'on ' if cached else 'off'}  {name:5} {statistics.mean(values):.2f} +- {spread:.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
