"""Every kind of image file becomes uint8 RGB, and every broken one is named in one line."""

from __future__ import annotations

import pickle
import struct
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ductwork.data.images import FileSource, is_image, read_image
from ductwork.errors import DataError

RED = (255, 0, 0)
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL")  # what is damaged here is damaged on purpose


def pixel(path: Path, row: int = 0, column: int = 0) -> list[int]:
    image = read_image(path)
    assert image.dtype == torch.uint8 and image.shape[0] == 3
    values: list[int] = image[:, row, column].tolist()
    return values


def test_shape_and_values_of_a_plain_image(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    assert torch.equal(read_image(tmp_path / "a.png"), torch.from_numpy(pixels).permute(2, 0, 1))


@pytest.mark.parametrize(
    ("mode", "colour", "expected"),
    [
        ("L", 100, [100] * 3),
        ("1", 1, [255] * 3),
        ("LA", (100, 255), [100] * 3),
        ("LA", (100, 0), [255] * 3),
        ("RGBA", (255, 0, 0, 255), [255, 0, 0]),
        ("RGBA", (255, 0, 0, 0), [255] * 3),
        ("RGBA", (0, 0, 0, 51), [204] * 3),
        ("I;16", 65535, [255] * 3),
        ("I;16", 257 * 3, [3] * 3),
    ],
)
def test_modes_of_png(tmp_path: Path, mode: str, colour: tuple[int, ...], expected: list[int]) -> None:
    Image.new(mode, (4, 3), colour).save(tmp_path / "a.png")
    assert pixel(tmp_path / "a.png") == expected


def test_palette_with_and_without_transparency(tmp_path: Path) -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putpixel((1, 0), 1)
    image.save(tmp_path / "a.png")
    image.save(tmp_path / "b.png", transparency=1)
    assert (pixel(tmp_path / "a.png"), pixel(tmp_path / "a.png", 0, 1)) == ([255, 0, 0], [0, 0, 255])
    assert (pixel(tmp_path / "b.png"), pixel(tmp_path / "b.png", 0, 1)) == ([255, 0, 0], [255, 255, 255])


def test_colour_key(tmp_path: Path) -> None:
    Image.new("RGB", (2, 2), RED).save(tmp_path / "a.png", transparency=RED)
    assert pixel(tmp_path / "a.png") == [255, 255, 255]


def test_cmyk(tmp_path: Path) -> None:
    Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(tmp_path / "a.jpg", quality=100)
    red, green, blue = pixel(tmp_path / "a.jpg")
    assert red > 245 and green < 10 and blue < 10


def test_first_frame_of_an_animation(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in (RED, (0, 0, 255))]
    for name in ("a.gif", "a.tif", "a.webp"):
        options: dict[str, Any] = {"lossless": True} if name.endswith("webp") else {}
        frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:], **options)
        assert pixel(tmp_path / name) == [255, 0, 0]


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    image = Image.new("RGB", (16, 8), RED)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned by 90 degrees
    image.save(tmp_path / "a.jpg", exif=exif)
    assert read_image(tmp_path / "a.jpg").shape == (3, 16, 8)


def test_damaged_exif_is_no_reason_to_refuse_an_image(tmp_path: Path) -> None:
    Image.new("RGB", (16, 8), RED).save(tmp_path / "a.jpg", exif=b"Exif\0\0II*\0" + struct.pack("<IHH", 8, 900, 7))
    assert read_image(tmp_path / "a.jpg").shape == (3, 8, 16)


def _refused(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        read_image(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and "\n" not in message
    return message.removeprefix(f"{path}: ")


def test_what_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = tmp_path / "good.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(good)
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "text.jpg").write_text("no image at all")
    (tmp_path / "cut.png").write_bytes(good.read_bytes()[:5000])
    (tmp_path / "folder.png").mkdir()
    Image.new("F", (2, 2)).save(tmp_path / "float.tif")
    assert "empty (0 bytes)" in _refused(tmp_path / "empty.jpg")
    assert "not an image" in _refused(tmp_path / "text.jpg")
    assert "damaged" in _refused(tmp_path / "cut.png")
    assert "folder" in _refused(tmp_path / "folder.png")
    assert "not there" in _refused(tmp_path / "absent.png")
    assert "32-bit" in _refused(tmp_path / "float.tif")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    assert "more than 2,000 pixels" in _refused(good)


@pytest.mark.parametrize("suffix", ["jpg", "png", "gif", "webp", "bmp", "tif"])
def test_no_damage_escapes_as_another_error(tmp_path: Path, suffix: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(pixels).save(path)
    whole = path.read_bytes()
    draw = np.random.default_rng(1)
    for _ in range(60):
        damaged = bytearray(whole[: draw.integers(1, len(whole))] if draw.random() < 0.5 else whole)
        for at in draw.integers(0, len(damaged), 8):
            damaged[at] = draw.integers(256)
        path.write_bytes(damaged)
        try:
            picture = read_image(path)
        except DataError as error:
            message = str(error)
        else:
            message = str(path) if picture.dtype == torch.uint8 else ""
        assert str(path) in message and "\n" not in message


@pytest.mark.parametrize("name", ["a.jpg", "a.JPG", "a.b.Jpeg", "A.PnG", "a.webp", "a.tif"])
def test_known_extensions(name: str) -> None:
    assert is_image(name)


@pytest.mark.parametrize("name", [".a.jpg", ".jpg", "jpg", "a.txt", "a.jpg.part", "._a.png", "Thumbs.db"])
def test_other_files(name: str) -> None:
    assert not is_image(name)


def test_file_source(tmp_path: Path) -> None:
    decomposed = unicodedata.normalize("NFD", "café.png")
    Image.new("RGB", (4, 3), RED).save(tmp_path / decomposed)
    source = pickle.loads(pickle.dumps(FileSource(str(tmp_path), (decomposed, "gone.png"))))
    assert len(source) == 2 and source.name(0) == unicodedata.normalize("NFC", "café.png")
    assert source.signature(0) == str((tmp_path / decomposed).stat().st_size)
    assert source.read(0).shape == (3, 3, 4)
    with pytest.raises(DataError, match=r"gone\.png: the image is not there"):
        source.signature(1)
