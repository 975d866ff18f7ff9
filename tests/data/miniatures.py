"""Miniature copies of the benchmarks in the exact layouts of their downloads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from ductwork.data.domainnet import DOMAINNET

OBJECTS = ("Alarm_Clock", "Backpack", "Mug")
DEEP_FAKES = ("biggan", "gaugan", "san", "whichfaceisreal", "wild")


def picture(path: Path, seed: int, side: int = 32) -> Path:
    """Soft blots of colour: no two are alike, and every one can be recognised."""
    path.parent.mkdir(parents=True, exist_ok=True)
    blots(seed, side).save(path, quality=95)
    return path


def blots(seed: int, side: int = 32) -> Image.Image:
    colours = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return Image.fromarray(colours).resize((side, side), Image.Resampling.BICUBIC)


def office_home(root: Path, *, real_world: str = "Real World", n: int = 4, classes: Sequence[str] = OBJECTS) -> Path:
    seed = 0
    for domain in ("Art", "Clipart", "Product", real_world):
        for label in classes:
            for i in range(1, n + 1):
                seed += 1
                picture(root / domain / label / f"{i:05d}.jpg", seed)
    (root / "ImageInfo.csv").write_text("Domain,Class,Image,Resolution\nArt,Mug,1,32x32\n")
    return root


def domainnet(root: Path, labels: Sequence[tuple[int, str]] | None = None, *, train: int = 2, test: int = 1) -> Path:
    """Labels are ids with class folders; painting has no training image of t-shirt, as in the real thing."""
    labels = labels or [(0, "aircraft_carrier"), (327, "t-shirt"), (328, "table"), (344, "zigzag")]
    seed = 1000
    for domain in DOMAINNET.orders[0]:
        for part, n in (("train", train), ("test", test)):
            lines = []
            for label, name in labels:
                if (domain, name, part) == ("painting", "t-shirt", "train"):
                    continue
                for i in range(n):
                    seed += 1
                    path = f"{domain}/{name}/{domain}_{label + 1:03d}_{part}{i:06d}.jpg"
                    picture(root / path, seed)
                    lines.append(f"{path} {label}")
            (root / f"{domain}_{part}.txt").write_text("\n".join(lines) + "\n")
    return root


def core50(root: Path, *, objects: Sequence[int] = (1, 2, 10), n: int = 2) -> Path:
    seed = 2000
    for session in range(1, 12):
        for thing in objects:
            for i in range(n):
                seed += 1
                picture(root / f"s{session}" / f"o{thing}" / f"C_{session:02d}_{thing:02d}_{i:03d}.png", seed)
    for name in ("paths.pkl", "LUP.pkl", "labels.pkl"):
        (root / name).write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")  # whoever opens this one is not to be trusted
    return root


def cddb(root: Path, *, n: int = 3, inner: str = "", sets: Sequence[str] = (*DEEP_FAKES, "cyclegan")) -> Path:
    """``inner`` is the folder level that some sets of the download have between part and class."""
    seed = 3000
    for name in sets:
        for part in ("train", "val"):
            for label in ("0_real", "1_fake"):
                for i in range(n):
                    seed += 1
                    picture(root / name / part / (inner if name == "cyclegan" else "") / label / f"{i:05d}.png", seed)
    return root
