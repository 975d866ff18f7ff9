"""`ductwork data check` on trees that were broken on purpose: every planted fault is found, and nothing else."""

from __future__ import annotations

import shutil
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter

from ductwork.data.duplicates import repeats
from ductwork.data.examine import Look, look_at_file, look_at_files, look_at_pixels
from ductwork.data.inspect import Finding, check
from ductwork.errors import ConfigError
from tests.data.miniatures import blots, core50, domainnet, office_home, picture

DOMAINS, CLASSES = ("night", "noon"), ("cat", "dog", "emu", "fox")
Plant = Callable[[Path], None]


def tree(root: Path, files: int) -> Path:
    """Sound images: half of them of each domain, three quarters for training."""
    each = files // (len(DOMAINS) * len(CLASSES))
    seed = 0
    for domain in DOMAINS:
        for label in CLASSES:
            for i in range(each):
                seed += 1
                part = "test" if i % 4 == 3 else "train"
                picture(root / domain / part / label / f"{i:04d}.{('jpg', 'png')[i % 2]}", seed)
    return root


def png_header(side: int) -> bytes:
    """A PNG that claims to be very large and holds nothing."""
    header = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunks = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    data = b"IDAT" + zlib.compress(b"")
    return b"\x89PNG\r\n\x1a\n" + chunks + struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data))


def plant(root: Path) -> dict[str, list[tuple[str, ...]]]:
    """Break things; returns for each kind of finding where it must be found."""
    kept: dict[str, list[tuple[str, ...]]] = {}

    def put(kind: str, place: str, write: Callable[[Path], object]) -> None:
        path = root / place
        write(path)
        kept.setdefault(kind, []).append((place,))

    def cut(path: Path) -> None:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    put("empty", "night/train/cat/0000.jpg", lambda p: p.write_bytes(b""))
    put("empty", "noon/test/fox/0003.png", lambda p: p.write_bytes(b""))
    put("truncated", "night/train/dog/0000.jpg", cut)
    put("truncated", "noon/train/dog/0001.png", cut)
    put("unreadable", "night/train/emu/0000.jpg", lambda p: p.write_text("<html>not found</html>"))
    put("unreadable", "noon/train/emu/float.tif", lambda p: Image.new("F", (8, 8)).save(p))
    put("bomb", "night/train/fox/bomb.png", lambda p: p.write_bytes(png_header(60_000)))
    put("bomb", "night/train/fox/large.png", lambda p: p.write_bytes(png_header(12_000)))
    put(
        "animated",
        "noon/train/cat/film.gif",
        lambda p: blots(10**6 + 3).save(p, save_all=True, append_images=[blots(10**6 + 1)]),
    )
    kept["palette"] = [("noon/train/cat/film.gif",)]
    put("cmyk", "noon/train/cat/print.jpg", lambda p: blots(10**6).convert("CMYK").save(p))
    put("palette", "noon/train/cat/few.png", lambda p: blots(10**6 + 2).quantize(16).save(p))
    deep = np.asarray(blots(10**6 + 4).convert("L")).astype(np.uint16) * 257
    put("16-bit", "noon/train/dog/deep.png", lambda p: Image.fromarray(deep).save(p))

    def copy(kind: str, source: str, to: str) -> None:
        shutil.copy(root / source, root / to)
        kept.setdefault(kind, []).append(tuple(sorted((source, to))))

    copy("leak", "night/train/cat/0004.jpg", "night/test/cat/copy.jpg")
    copy("leak", "noon/train/dog/0002.jpg", "night/test/dog/other-domain.jpg")
    copy("two-labels", "noon/train/fox/0001.png", "noon/train/emu/copy.png")
    copy("two-labels", "night/train/dog/0001.png", "night/test/emu/copy.png")
    # the same pixels in another file are the same image
    Image.open(root / "night/train/emu/0001.png").save(root / "night/test/emu/again.bmp")
    kept["leak"].append(("night/test/emu/again.bmp", "night/train/emu/0001.png"))

    def again(kind: str, source: str, to: str, change: Callable[[Image.Image], Image.Image]) -> None:
        with Image.open(root / source) as image:
            change(image.convert("RGB")).save(root / to, quality=60)
        kept.setdefault(kind, []).append(tuple(sorted((source, to))))

    again("near-leak", "night/train/fox/0001.png", "night/test/fox/resized.png", lambda i: i.resize((48, 48)))
    again("near-leak", "noon/train/cat/0001.png", "noon/test/cat/compressed.jpg", lambda i: i)
    again(
        "near-two-labels", "noon/train/fox/0002.jpg", "noon/train/dog/soft.png", lambda i: i.filter(ImageFilter.SMOOTH)
    )
    return kept


def plant_classes(root: Path) -> dict[str, list[tuple[str, ...]]]:
    """Two more domains whose classes are not what they should be; returns where that must be found."""
    seed = 10**7
    for domain, label, images in (("dusk", "cat", 4), ("rain", "cat", 40), ("rain", "dog", 4), ("rain", "E mu", 4)):
        for i in range(images):
            seed += 1
            picture(root / domain / ("test" if i % 4 == 3 else "train") / label / f"{i:04d}.png", seed)
    return {
        "class-names": [("E mu", "emu")],
        "few-classes": [("dusk",)],
        "absent-classes": [("rain",)],
        "imbalance": [("rain",)],
    }


def found(findings: list[Finding]) -> dict[str, list[tuple[str, ...]]]:
    kinds: dict[str, list[tuple[str, ...]]] = {}
    for finding in findings:
        kinds.setdefault(finding.kind, []).append(tuple(sorted(finding.where)))
    return kinds


def ordered(kinds: dict[str, list[tuple[str, ...]]]) -> dict[str, list[tuple[str, ...]]]:
    return {kind: sorted(places) for kind, places in sorted(kinds.items())}


@pytest.mark.parametrize("files", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_every_planted_fault_is_found_and_nothing_else(files: int, tmp_path: Path) -> None:
    root = tree(tmp_path / "photos", files)
    assert check(str(root)) == []
    planted = plant(root) | plant_classes(root)
    counted: list[int] = []
    findings = check(str(root), begin=counted.append, advance=lambda n: counted.append(-n))
    assert ordered(found(findings)) == ordered(planted)
    assert sum(counted) == 0
    severity = {finding.kind: finding.severity for finding in findings}
    errors = {"empty", "truncated", "unreadable", "bomb", "leak", "two-labels", "class-names"}
    assert {kind for kind, grade in severity.items() if grade == "error"} == errors
    assert {severity[kind] for kind in ("near-leak", "few-classes", "imbalance")} == {"warning"}
    assert severity["cmyk"] == "note"


def test_processes_find_the_same(tmp_path: Path) -> None:
    root = tree(tmp_path / "photos", 600)
    plant(root)
    assert check(str(root), workers=2) == check(str(root), workers=1)


def remove(root: Path, domain: str, *labels: str, parts: Sequence[str] = ("train", "test")) -> None:
    for part in parts:
        for label in labels:
            shutil.rmtree(root / domain / part / label)


def rename(root: Path, domain: str, old: str, new: str) -> None:
    for part in ("train", "test"):
        (root / domain / part / old).rename(root / domain / part / new)


def blanks(root: Path) -> None:
    rename(root, "noon", "emu", "big emu")
    rename(root, "night", "emu", "big_emu")


def second_domain(root: Path) -> None:
    shutil.copytree(root / "night", root / "Night")
    for seed, path in enumerate(sorted((root / "Night").rglob("*.*"))):
        picture(path, 50_000 + seed)


def thin_out(root: Path) -> None:
    for path in sorted((root / "noon/train/fox").iterdir())[1:]:
        path.unlink()


FAULTS: dict[str, tuple[Plant, dict[str, list[str]]]] = {
    "absent": (lambda root: remove(root, "night", "cat"), {"absent-classes": ["night"]}),
    "untrained": (
        lambda root: remove(root, "night", "cat", parts=["train"]),
        {"untrained-class": ["cat night"], "absent-classes": ["night"]},
    ),
    "single class": (lambda root: remove(root, "night", "cat", "dog", "emu"), {"few-classes": ["night"]}),
    "case": (lambda root: rename(root, "night", "cat", "Cat"), {"class-names": ["Cat cat"]}),
    "blanks": (blanks, {"class-names": ["big emu big_emu"]}),
    "domains": (second_domain, {"domain-names": ["Night night"]}),
    "imbalance": (thin_out, {"imbalance": ["noon"]}),
    "empty class": (lambda root: (root / "noon/train/goat").mkdir(), {"layout": [""]}),
    "stray image": (lambda root: blots(0).save(root / "stray.png"), {"layout": [""]}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_classes_and_names(fault: str, tmp_path: Path) -> None:
    spoil, expected = FAULTS[fault]
    root = tree(tmp_path / "photos", 160)
    spoil(root)
    findings = check(str(root))
    assert {kind: [" ".join(place) for place in places] for kind, places in found(findings).items()} == expected


def test_a_root_that_is_one_level_off(tmp_path: Path) -> None:
    root = tree(tmp_path / "all" / "photos", 80)
    plain = tmp_path / "plain"
    for seed, place in enumerate(("a/x", "a/y", "b/x", "b/y")):
        for i in range(4):
            picture(plain / place / f"{i}.png", 10 * seed + i)
    assert check(str(plain)) == []
    for wrong, words in {
        root.parent: "one level too high",
        root / "night": "folder of one domain",
        root / "night" / "train": "folder of one domain",
        root / "night" / "train" / "cat": "folder of one class",
        plain.parent: "one level too high",
        plain / "a": "folder of one domain",
    }.items():
        findings = [f for f in check(str(wrong)) if f.kind == "root"]
        assert findings, wrong
        assert words in findings[0].message
        assert all(f.severity == "error" for f in findings)


def test_an_undivided_folder_is_checked_with_the_split_it_would_get(tmp_path: Path) -> None:
    for seed, place in enumerate(("a/x", "a/y", "b/x", "b/y")):
        for i in range(10):
            picture(tmp_path / place / f"{i}.png", 10 * seed + i)
    (tmp_path / "b" / "z").mkdir()  # refused by a run, looked through nevertheless
    for i in range(10):
        shutil.copy(tmp_path / "a" / "x" / "0.png", tmp_path / "a" / "x" / f"copy{i}.png")
    assert {f.kind for f in check(str(tmp_path))} == {"layout", "leak"}


def test_named_streams(tmp_path: Path) -> None:
    assert check("core50", root=core50(tmp_path / "core")) == []
    assert check("office-home", root=office_home(tmp_path / "office", n=8, classes=("Mug", "Pen"))) == []
    findings = check("domainnet", root=domainnet(tmp_path / "net"))
    assert found(findings) == {"absent-classes": [("painting",)], "untrained-class": [("painting", "t-shirt")]}
    assert {finding.severity for finding in findings} == {"note", "warning"}
    wrong = check("core50", root=tmp_path)
    assert [(f.severity, f.kind) for f in wrong] == [("error", "layout")]
    assert f"did you mean root={tmp_path / 'core'}" in wrong[0].message
    with pytest.raises(ConfigError, match="say where it lies"):
        check("core50")
    with pytest.raises(ConfigError, match="no stream and no folder"):
        check("corre50")


def test_the_demo_has_no_error() -> None:
    assert not [finding for finding in check("demo") if finding.severity == "error"]


def test_names_with_numbers(tmp_path: Path) -> None:
    for seed, place in enumerate(("a/1 2", "a/12", "b/1 2", "b/12")):
        for i in range(4):
            picture(tmp_path / place / f"{i}.png", 10 * seed + i)
    assert check(str(tmp_path)) == []


def test_looks(tmp_path: Path) -> None:
    path = picture(tmp_path / "a.png", 1)
    look = look_at_file(str(path))
    assert (look.fault, look.traits, len(look.hash)) == ("", (), 16)
    colour = tmp_path / "deep.png"  # 16 bits a channel, which Pillow opens as plain RGB
    header = b"IHDR" + struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0)
    data = b"IDAT" + zlib.compress(b"\0" + b"\x12\x34" * 3)
    chunks = [struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in (header, data, b"IEND")]
    colour.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
    assert look_at_file(str(colour)).traits == ("16-bit",)
    assert look_at_pixels(np.full((9, 9, 3), 7, np.uint8)).hash == b"", "a flat picture is like every other"
    assert [look.fault for look in look_at_files([str(path), str(tmp_path / "none.png")], 1)] == ["", "unreadable"]


def test_no_near_duplicate_escapes_its_bands() -> None:
    """Up to five flipped bits are found: they cannot spoil all six bands."""
    draw = np.random.default_rng(5)
    looks, tested = [], []
    for i in range(300):
        bits = draw.integers(0, 2, 128, dtype=np.uint8)
        looks.append(Look(digest=b"%d" % i, hash=np.packbits(bits).tobytes(), thumbnail=bytes(192)))
        bits[draw.choice(128, i % 8, replace=False)] ^= 1
        looks.append(Look(digest=b"-%d" % i, hash=np.packbits(bits).tobytes(), thumbnail=bytes(192)))
        tested += [False, True]
    pairs = {repeat.positions for repeat in repeats(looks, tested, ["x"] * 600)}
    assert {(2 * i, 2 * i + 1) for i in range(300) if i % 8 <= 5} <= pairs <= {(2 * i, 2 * i + 1) for i in range(300)}
