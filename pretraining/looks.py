"""How the drawn demo domains look: type on paper, house numbers, segment displays.

Every function draws one digit as a tile, uint8 [32, 32] or [32, 32, 3], from a font or device and a
random generator.
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


def typeset(digit: int, face: Path, random: np.random.Generator) -> Tiles:
    """A figure printed on paper: dark grey on off-white, a little ink gain, a faint scan."""
    mask = _ink(face, str(digit), int(random.integers(74, 104)), shift=tuple(random.normal(0, 4, 2)))
    mask = _tilt(mask, random, 0.015).filter(ImageFilter.GaussianBlur(float(random.uniform(0.5, 3))))
    ink = np.asarray(mask.resize((TILE, TILE), Image.Resampling.BOX), dtype=np.float32)[:, :, None] / 255
    paper = np.array([1.0, 0.985, 0.95]) * random.uniform(205, 252)
    dark = np.array([1.0, 1.0, 1.05]) * random.uniform(10, 80)
    page = (paper * (1 - ink) + dark * ink) * _uneven(random, 0.015)
    return (np.round(np.clip(page, 0, 255) / 4) * 4).clip(0, 255).astype(np.uint8)


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


# Segments a..g of a seven-segment digit, and the digits made of them.
LIT = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg")
LAMPS: tuple[Colour, ...] = ((255, 60, 40), (60, 255, 90), (255, 170, 40), (70, 190, 255), (240, 240, 255))
LCD: tuple[tuple[Colour, Colour], ...] = (((156, 170, 140), (34, 40, 36)), ((196, 200, 192), (30, 30, 44)))


def _segments(thick: float, gap: float, width: float, height: float) -> dict[str, list[tuple[float, float]]]:
    """Hexagons in pixels around (0, 0), for strokes ``thick`` wide with mitred ends."""
    x, y, t = width / 2, height / 2, thick / 2

    def bar(ax: float, ay: float, bx: float, by: float) -> list[tuple[float, float]]:
        if ay == by:
            ax, bx = ax + gap, bx - gap
            return [(ax, ay), (ax + t, ay - t), (bx - t, ay - t), (bx, ay), (bx - t, ay + t), (ax + t, ay + t)]
        ay, by = ay + gap, by - gap
        return [(ax, ay), (ax + t, ay + t), (ax + t, by - t), (ax, by), (ax - t, by - t), (ax - t, ay + t)]

    return {
        "a": bar(-x, -y, x, -y),
        "b": bar(x, -y, x, 0),
        "c": bar(x, 0, x, y),
        "d": bar(-x, y, x, y),
        "e": bar(-x, 0, -x, y),
        "f": bar(-x, -y, -x, 0),
        "g": bar(-x, 0, x, 0),
    }


def segment_display(digit: int, device: int, random: np.random.Generator) -> Tiles:
    """A seven-segment digit on one of many devices: glowing lamps or dark liquid crystal, leaning, with a halo."""
    make = np.random.default_rng(1000 + device)
    thick, gap = make.uniform(8, 19), make.uniform(0.5, 4)
    width, height = make.uniform(34, 52), make.uniform(68, 88)
    lean, crystal = make.uniform(0, 0.2), make.random() < 0.3
    unlit, halo = make.uniform(0, 0.16), make.uniform(3, 9)
    lamp, (glass, dark) = LAMPS[int(make.integers(len(LAMPS)))], LCD[int(make.integers(len(LCD)))]
    short_six_and_nine, hooked_seven = make.random() < 0.25, make.random() < 0.25
    lit = LIT[digit]
    if short_six_and_nine and digit in (6, 9):
        lit = lit.replace("a" if digit == 6 else "d", "")
    if hooked_seven and digit == 7:
        lit += "f"
    centre = BIG / 2 + random.normal(0, 4, 2)
    on, off = Image.new("L", (BIG, BIG)), Image.new("L", (BIG, BIG))
    for name, shape in _segments(thick, gap, width, height).items():
        points = [(centre[0] + px - lean * py, centre[1] + py) for px, py in shape]
        ImageDraw.Draw(on if name in lit else off).polygon(points, fill=255)
    on, glow = _tilt(on, random, 0.015), on.filter(ImageFilter.GaussianBlur(halo))
    parts = [
        image.filter(ImageFilter.GaussianBlur(1.5)).resize((TILE, TILE), Image.Resampling.BOX)
        for image in (on, off, glow)
    ]
    lit_ink, unlit_ink, haze = (np.asarray(part, dtype=np.float32)[:, :, None] / 255 for part in parts)
    ink = np.clip(lit_ink + unlit * unlit_ink, 0, 1)
    if crystal:
        scene = np.array(glass) * (1 - ink) + np.array(dark) * ink
    else:
        ground = np.array([12, 12, 16]) + make.uniform(0, 26)
        scene = ground + (np.array(lamp) - ground) * np.clip(ink + 0.45 * haze, 0, 1) * random.uniform(0.75, 1)
    scene = scene * _uneven(random, 0.04) + random.normal(0, 2, scene.shape)
    return np.clip(scene, 0, 255).astype(np.uint8)
