"""Render letters of the fetched fonts, and collect doodles, as grey masks: the pre-training data.

Writes ``glyphs.npz`` with ``masks`` uint8 [n, 48, 48] (ink = 255), ``labels`` int64 [n], ``names`` and
``held_out`` bool [n] (faces kept aside to measure). Colours, distortion and clutter come later, at
random, in ``styles.py``. No digit is rendered, and no family with the role ``demo``.
"""

from __future__ import annotations

import argparse
import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from fontTools.ttLib import TTFont
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

Mask = NDArray[np.uint8]

HERE = Path(__file__).resolve().parent
SIDE = 48
UPPER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
LOWER = "abdefghijlmnqrt"  # the others differ from their capital by size alone, which rendering removes
MARKS = "&@#$%?!€£¥§©+=<>{}[]~*"
GREEK = "ΓΔΘΛΞΠΣΦΨΩαβγδεζηθλμξπσφψω"
CYRILLIC = "БДЖИЛФЦЧЩЪЫЭЮЯбджзлфцчщъыэюя"
ALPHABETS = {"latin": UPPER + LOWER + MARKS, "greek": GREEK, "cyrillic": CYRILLIC}
# Letters that many a hand or face draws like a digit; a doodle of a snowman is an eight.
DIGIT_LIKE = set("OIlЗз")
DIGIT_LIKE_DOODLES = {"circle", "line", "snowman", "hourglass", "donut", "squiggle", "hockey stick", "baseball bat"}
DIGIT_LIKE_DOODLES |= {"wheel", "potato", "cookie", "pizza", "boomerang", "golf club", "knee", "elbow", "leg", "arm"}


def draw(font: ImageFont.FreeTypeFont, text: str, side: int = SIDE, stroke: int = 0) -> Mask | None:
    """One glyph as a mask, its ink box centred and scaled to 3/4 of the tile; None if it has no ink."""
    left, top, right, bottom = font.getbbox(text, stroke_width=stroke)
    width, height = int(right - left), int(bottom - top)
    if width < 2 or height < 2 or max(width, height) > 600:
        return None
    image = Image.new("L", (width, height))
    ImageDraw.Draw(image).text((-left, -top), text, fill=255, font=font, stroke_width=stroke)
    scale = 0.75 * side / max(width, height)
    size = (max(2, round(width * scale)), max(2, round(height * scale)))
    tile = Image.new("L", (side, side))
    tile.paste(image.resize(size, Image.Resampling.BOX), ((side - size[0]) // 2, (side - size[1]) // 2))
    mask = np.asarray(tile, dtype=np.uint8)
    return mask if mask.max() > 100 else None


def same(a: Mask, b: Mask) -> bool:
    """Whether two masks show one shape, as capitals and small letters of an all-capitals face do."""
    both, either = np.minimum(a, b).sum(dtype=np.int64), np.maximum(a, b).sum(dtype=np.int64)
    return bool(both > 0.85 * either)


def letters(face: Path, alphabet: str) -> Iterator[tuple[str, Mask]]:
    present = TTFont(face, lazy=True).getBestCmap() or {}
    font = ImageFont.truetype(str(face), 80)
    capitals: dict[str, Mask] = {}
    for letter in alphabet:
        if letter in DIGIT_LIKE or ord(letter) not in present:
            continue
        mask = draw(font, letter)
        if mask is None:
            continue
        if letter in UPPER:
            capitals[letter] = mask
        capital = capitals.get(letter.upper()) if letter in LOWER else None
        if capital is None or not same(mask, capital):
            yield letter, mask


def doodles(folder: Path, per_category: int) -> Iterator[tuple[str, Mask]]:
    for archive in sorted(folder.glob("*.ndjson.gz")):
        category = archive.name.removesuffix(".ndjson.gz")
        if category in DIGIT_LIKE_DOODLES:
            continue
        with gzip.open(archive, "rt") as lines:
            for _, line in zip(range(per_category), lines, strict=False):
                ink = np.array(json.loads(line), dtype=np.float32).reshape(28, 28)
                tile = Image.fromarray((ink * 255).astype(np.uint8)).resize((40, 40), Image.Resampling.BICUBIC)
                mask = np.zeros((SIDE, SIDE), dtype=np.uint8)
                mask[4:44, 4:44] = np.asarray(tile)
                yield f"doodle {category}", mask


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="folder that fetch.py filled")
    parser.add_argument("--doodles", type=int, default=100, help="drawings of each category")
    args = parser.parse_args()
    families = json.loads((HERE / "families.json").read_text())
    rows: list[tuple[str, Mask, bool]] = []
    for family in families:
        if family["role"] != "pretrain":
            continue
        slug = family["family"].lower().replace(" ", "-")
        aside = zlib.crc32(slug.encode()) % 20 == 0
        for subset, alphabet in ALPHABETS.items():
            for face in sorted((args.work / "fonts" / slug).glob(f"*-{subset}-*-normal.woff")):
                rows += [(name, mask, aside) for name, mask in letters(face, alphabet)]
    found = len(rows)
    for number, (name, mask) in enumerate(doodles(args.work / "quickdraw/package/src/drawings", args.doodles)):
        rows.append((name, mask, number % 20 == 0))
    names = sorted({name for name, _, _ in rows})
    index = {name: i for i, name in enumerate(names)}
    np.savez(
        args.work / "glyphs.npz",
        masks=np.stack([mask for _, mask, _ in rows]),
        labels=np.array([index[name] for name, _, _ in rows], dtype=np.int64),
        names=np.array(names),
        held_out=np.array([aside for _, _, aside in rows]),
    )
    print(f"{found} letters, {len(rows) - found} doodles, {len(names)} classes")


if __name__ == "__main__":
    main()
