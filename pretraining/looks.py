"""How the drawn demo domains look: figures struck into metal, house numbers, mosaics.

Every function draws one digit as a tile, uint8 [32, 32, 3], from a font and a random generator.
"""

from __future__ import annotations

import colorsys
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageDraw, ImageFilter, ImageFont

Tiles = NDArray[np.uint8]
Colour = tuple[int, int, int]

TILE = 32
BIG = 128  # everything is drawn four times larger and then reduced
SPREAD = 0.2  # of the brightness of the stones of a mosaic

# Enamel, brass, slate, brick, glazed tile, painted wood: (plate, digits).
PLATES: tuple[tuple[Colour, Colour], ...] = (
    ((24, 52, 120), (240, 240, 235)),
    ((238, 236, 228), (20, 40, 110)),
    ((30, 30, 34), (208, 172, 92)),
    ((196, 160, 84), (36, 28, 20)),
    ((70, 78, 84), (226, 226, 222)),
    ((150, 66, 48), (238, 222, 200)),
    ((18, 96, 70), (242, 240, 226)),
    ((246, 246, 242), (178, 30, 34)),
    ((168, 24, 32), (250, 246, 238)),
    ((120, 84, 54), (244, 226, 180)),
    ((206, 214, 220), (32, 34, 40)),
    ((250, 208, 60), (26, 26, 26)),
    ((86, 140, 170), (30, 32, 60)),
    ((222, 200, 178), (110, 46, 36)),
)


@lru_cache(maxsize=256)
def _font(face: Path, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(face), size)


def _ink(face: Path, text: str, height: int, canvas: int = BIG, shift: tuple[float, float] = (0, 0)) -> Image.Image:
    """A digit as a grey mask, ``height`` pixels high, centred on a square canvas and then shifted."""
    font = _font(face, 120)
    left, top, right, bottom = (int(v) for v in font.getbbox(text))
    glyph = Image.new("L", (max(1, right - left), max(1, bottom - top)))
    ImageDraw.Draw(glyph).text((-left, -top), text, fill=255, font=font)
    scale = min(height / glyph.height, 0.86 * canvas / glyph.width)
    size = (max(1, round(glyph.width * scale)), max(1, round(glyph.height * scale)))
    mask = Image.new("L", (canvas, canvas))
    corner = (round((canvas - size[0]) / 2 + shift[0]), round((canvas - size[1]) / 2 + shift[1]))
    mask.paste(glyph.resize(size, Image.Resampling.LANCZOS), corner)
    return mask


def _tilt(image: Image.Image, random: np.random.Generator, strength: float) -> Image.Image:
    """See the tile from a little aside: its corners move independently."""
    side = image.width
    corners = np.array([[0, 0], [0, side], [side, side], [side, 0]]) + random.normal(0, strength * side, (4, 2))
    quad = tuple(float(v) for v in corners.ravel())
    fill = image.resize((1, 1), Image.Resampling.BOX).getpixel((0, 0))
    return image.transform((side, side), Image.Transform.QUAD, quad, Image.Resampling.BILINEAR, fillcolor=fill)


def _uneven(random: np.random.Generator, strength: float) -> NDArray[np.float32]:
    """A smooth random field [32, 32, 1] around one: light falls unevenly."""
    coarse = random.normal(0, 1, (3, 3)).astype(np.float32)
    field = np.asarray(Image.fromarray(coarse).resize((TILE, TILE), Image.Resampling.BICUBIC))
    return (1 + strength * field)[:, :, None]


def embossed(digit: int, face: Path, random: np.random.Generator) -> Tiles:
    """A figure struck into metal: of the colour of its ground, seen only by the light on its edges."""
    mask = _ink(face, str(digit), int(random.integers(80, 108)), shift=tuple(random.normal(0, 4, 2)))
    mask = _tilt(mask, random, 0.02).filter(ImageFilter.GaussianBlur(float(random.uniform(2, 4))))
    height = np.asarray(mask.resize((TILE, TILE), Image.Resampling.BOX), dtype=np.float32) / 255
    down, right = np.gradient(height)
    light = random.uniform(0, 2 * np.pi)
    relief = np.cos(light) * right + np.sin(light) * down
    grain = random.normal(0, 1, (TILE, TILE))
    if random.random() < 0.5:  # brushed
        grain = 0.4 * grain + random.normal(0, 1, (TILE, 1))
    grey = random.uniform(70, 190) + relief * random.uniform(110, 200) + grain * random.uniform(3, 9)
    tint = 1 + random.normal(0, 0.06, 3)
    return np.clip(grey[:, :, None] * tint * _uneven(random, 0.08), 0, 255).astype(np.uint8)


def house_number(digit: int, face: Path, random: np.random.Generator) -> Tiles:
    """A digit of a house number: a coloured plate, its neighbours, a shadow, seen from aside."""
    plate, paint = PLATES[int(random.integers(len(PLATES)))]
    if random.random() < 0.3:
        plate, paint = _random_pair(random)
    height = int(random.integers(66, 96))
    shift = (float(random.normal(0, 6)), float(random.normal(0, 5)))
    mask = _ink(face, str(digit), height, shift=shift)
    for side in (-1, 1):
        if random.random() < 0.55:
            away = side * float(random.uniform(70, 92))
            neighbour = _ink(face, str(int(random.integers(10))), height, shift=(shift[0] + away, shift[1]))
            mask = ImageChops.lighter(mask, neighbour)
    scene = Image.new("RGB", (BIG, BIG), plate)
    if random.random() < 0.6:
        shade = tuple(int(0.45 * c) for c in plate)
        fall = tuple(int(v) for v in random.integers(3, 8, 2))
        scene.paste(Image.new("RGB", scene.size, shade), mask=ImageChops.offset(mask, *fall))
    scene.paste(Image.new("RGB", scene.size, paint), mask=mask)
    if random.random() < 0.35:
        inset = int(random.integers(2, 12))
        ImageDraw.Draw(scene).rectangle((inset, inset, BIG - inset, BIG - inset), outline=paint, width=4)
    scene = _tilt(scene, random, 0.05).filter(ImageFilter.GaussianBlur(float(random.uniform(1, 5))))
    small = np.asarray(scene.resize((TILE, TILE), Image.Resampling.BOX), dtype=np.float32)
    small = small * _uneven(random, 0.09) * random.uniform(0.55, 1.1) + random.normal(0, 5, small.shape)
    return np.clip(small, 0, 255).astype(np.uint8)


def _random_pair(random: np.random.Generator) -> tuple[Colour, Colour]:
    """Two colours that differ in hue and clearly in brightness."""
    hue = random.random()
    low, high = random.uniform(0.15, 0.45), random.uniform(0.7, 1.0)
    values = (low, high) if random.random() < 0.5 else (high, low)
    pair = []
    for value, turn in zip(values, (0.0, random.uniform(0.2, 0.8)), strict=True):
        red, green, blue = colorsys.hsv_to_rgb((hue + turn) % 1, float(random.uniform(0.2, 0.8)), value)
        pair.append((int(red * 255), int(green * 255), int(blue * 255)))
    return pair[0], pair[1]


def mosaic(digit: int, face: Path, random: np.random.Generator) -> Tiles:
    """A digit laid out in small stones, round or square, which differ more from one another than from the ground."""
    mask = _ink(face, str(digit), int(random.integers(88, 112)), shift=tuple(random.normal(0, 3, 2)))
    ink = np.asarray(_tilt(mask.filter(ImageFilter.MaxFilter(5)), random, 0.02)) > 127
    hue, saturation, value = random.random(), random.uniform(0.35, 0.7), random.uniform(0.5, 0.7)
    other = hue + random.choice((-1, 1)) * random.uniform(0.2, 0.5)
    lift = random.choice((-1, 1)) * 0.15
    grout = np.clip(random.uniform(90, 225) + random.normal(0, 6, 3), 0, 255)
    scene = Image.new("RGB", (BIG, BIG), tuple(int(v) for v in grout))
    stone = ImageDraw.Draw(scene).ellipse if random.random() < 0.5 else ImageDraw.Draw(scene).rectangle
    count = int(random.integers(13, 18))
    step = BIG / count
    for row, column in np.ndindex(count, count):
        y, x = (np.array([row, column]) + 0.5) * step + random.normal(0, 0.6, 2)
        lit = ink[min(BIG - 1, int(y)), min(BIG - 1, int(x))]
        colour = colorsys.hsv_to_rgb(
            ((other if lit else hue) + random.normal(0, 0.03)) % 1,
            saturation + random.uniform(-0.1, 0.1),
            float(np.clip(value + (lift if lit else -lift) + random.uniform(-SPREAD, SPREAD), 0.1, 1)),
        )
        radius = step * random.uniform(0.42, 0.52)
        stone((x - radius, y - radius, x + radius, y + radius), fill=tuple(int(255 * v) for v in colour))
    small = np.asarray(scene.resize((TILE, TILE), Image.Resampling.BOX), dtype=np.float32)
    return np.clip(small * _uneven(random, 0.05), 0, 255).astype(np.uint8)
