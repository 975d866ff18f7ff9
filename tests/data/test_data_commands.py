"""`ductwork data check|stats|prepare`, and what is behind the last two."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ductwork.data.cache import ImageCache
from ductwork.data.domain import ImageSet
from ductwork.data.images import FileSource
from ductwork.data.prepare import cache_folder, compare, facts_of, instructions
from ductwork.data.stats import contact_sheet, statistics
from ductwork.data.streams import open_stream
from ductwork.errors import ConfigError
from tests.cli.conftest import Command, ductwork
from tests.data.miniatures import cddb, core50, domainnet, office_home, picture

__all__ = ["ductwork"]  # a fixture


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_check(ductwork: Command, tmp_path: Path) -> None:
    root = office_home(tmp_path / "home")
    sound = ductwork("data", "check", "office-home", "--root", root)
    assert (sound.code, sound.out.strip()) == (0, "errors: 0, warnings: 0, notes: 0")
    for path in (root / "Art" / "Mug").iterdir():
        path.write_bytes(b"")
    for path in (root / "Clipart").rglob("*.jpg"):
        path.write_bytes(b"")
    broken = ductwork("data", "check", "office-home", "--root", root)
    assert broken.code == 1
    assert broken.out.count("\tempty\t") == 5
    assert "11 more of the same kinds; --all lists them" in broken.out
    assert "errors: 16, warnings: 0" in broken.out
    assert ductwork("data", "check", "office-home", "--root", root, "--all").out.count("\tempty\t") == 16
    as_data = json.loads(ductwork("data", "check", "office-home", "--root", root, "--json").out)
    assert len(as_data) == 16
    assert as_data[0]["kind"] == "empty"
    assert as_data[0]["where"] == ["Art/Mug/00001.jpg"]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="asks the system for the processes of a command")
@pytest.mark.parametrize("workers", [1, 2])
def test_check_can_be_interrupted(tmp_path: Path, workers: int) -> None:
    """One line and the code of an interruption, whatever the processes that read images were at."""
    root = tmp_path / "photos"
    noise = np.random.default_rng(0).integers(0, 256, (400, 400, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    for place in ("day/cat", "day/dog", "night/cat", "night/dog"):
        (root / place).mkdir(parents=True)
        for i in range(300):
            os.link(tmp_path / "noise.png", root / place / f"{i}.png")
    command = [sys.executable, "-m", "ductwork.cli.main", "data", "check", str(root), "--workers", str(workers)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stderr is not None
    opened = [f"/proc/{process.pid}/{what}" for what in ("io", f"task/{process.pid}/children")]
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:  # until images are being read: by this process, or by those that it started
        read = int(Path(opened[0]).read_text().split()[1])
        if (workers == 1 and read > 60_000_000) or Path(opened[1]).read_text().split():
            break
        time.sleep(0.05)
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors.count("\n")) == (130, 1), errors
    assert errors.startswith("ductwork: interrupted")


def test_the_cache_is_shown_and_cleared(ductwork: Command, tmp_path: Path, cache: Path) -> None:
    for i in range(3):
        picture(tmp_path / f"{i}.png", i)
    images = ImageSet(FileSource(str(tmp_path), tuple(f"{i}.png" for i in range(3))), np.zeros(3, int), ("x",))
    ImageCache(cache / "ductwork" / "images", 10**9).cached(images, 16)
    lines = [line.split("\t") for line in ductwork("data", "cache").out.splitlines()]
    assert lines[1][0].startswith("16px-") and lines[1][1:3] == ["3", "0.00 GB"]
    assert "GB freed" in ductwork("data", "cache", "--clear").out
    assert not list(cache.rglob("*.shard")) and len(ductwork("data", "cache").out.splitlines()) == 2
    elsewhere = ductwork("data", "cache", "--folder", tmp_path / "no such folder")
    assert (elsewhere.code, len(elsewhere.out.splitlines())) == (0, 2)


@pytest.mark.parametrize("command", ["check", "stats"])
def test_bad_input(command: str, ductwork: Command) -> None:
    done = ductwork("data", command, "office-home")
    assert (done.code, len(done.err.strip().splitlines())) == (2, 1)
    assert "--root DIR" in done.err
    assert "did you mean 'office-home'" in ductwork("data", command, "ofice-home").err


def test_stats(ductwork: Command, tmp_path: Path) -> None:
    root = core50(tmp_path / "core")
    done = ductwork("data", "stats", "core50", "--root", root, "--sheet", tmp_path / "sheet.png")
    assert done.code == 0, done.err
    lines = [line.split("\t") for line in done.out.splitlines()]
    assert ["s11", "train", "6", "3", "2", "2"] in lines
    assert ["s3", "test", "6", "3", "2", "2"] in lines
    assert ["o10", *["2+0"] * 8, *["0+2"] * 3] in lines
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.format == "PNG"
        assert sheet.height > 8 * 96
    found = json.loads(ductwork("data", "stats", "core50", "--root", root, "--json").out)
    assert found["per_class"]["o1"]["s7"] == [0, 2]


def test_statistics_of_a_split_stream(tmp_path: Path) -> None:
    found = statistics(open_stream("domainnet", root=domainnet(tmp_path)))
    painting = {part.split: part for part in found.parts if part.domain == "painting"}
    assert (painting["train"].classes, painting["test"].classes) == (3, 4)
    assert found.per_class["t-shirt"]["painting"] == (0, 1)
    assert found.per_class["zigzag"]["real"] == (2, 1)


def test_a_contact_sheet_must_be_a_png(tmp_path: Path) -> None:
    stream = open_stream("demo")
    with pytest.raises(ConfigError, match=r"must be called \*\.png"):
        contact_sheet(stream, tmp_path / "sheet.jpg")
    with pytest.raises(ConfigError, match="cannot write"):
        contact_sheet(stream, tmp_path / "nowhere" / "sheet.png")
    with Image.open(contact_sheet(stream, tmp_path / "sheet.png", columns=3)) as sheet:
        assert sheet.width < 500


def test_a_contact_sheet_of_names_that_the_font_lacks(tmp_path: Path) -> None:
    for seed, place in enumerate(("昼/猫", "昼/犬", "夜/猫")):
        for i in range(4):
            picture(tmp_path / "photos" / place / f"{i}.png", 4 * seed + i)
    assert contact_sheet(open_stream(tmp_path / "photos"), tmp_path / "sheet.png").exists()


@pytest.mark.parametrize(
    "name", ["office-home", "domainnet", "domainnet-cil", "domainnet-cil-shifting", "core50", "cddb-hard"]
)
def test_prepare_says_how_to_get_it(name: str, ductwork: Command) -> None:
    done = ductwork("data", "prepare", name)
    assert done.code == 0
    assert "https://" in done.out
    assert f"ductwork data prepare {name} --root DIR" in done.out
    assert instructions(facts_of(name)) in done.out


def test_prepare(ductwork: Command, tmp_path: Path, cache: Path) -> None:
    root = cddb(tmp_path / "cddb")
    before = sorted(root.rglob("*"))
    done = ductwork("data", "prepare", "cddb-hard", "--root", root)
    assert done.code == 1
    assert ["san", "test", "6", "90", "differs"] in [line.split("\t") for line in done.out.splitlines()]
    assert "5 counts differ" in done.out
    assert sorted(root.rglob("*")) == before
    (path,) = (cache / "ductwork" / "index").iterdir()
    index = json.loads(path.read_text())
    assert str(path) in done.out
    assert index["fingerprint"] == open_stream("cddb-hard", root=root).fingerprint
    test = index["domains"]["san"]["test"]
    assert test["images"][0][0] == "san/val/0_real/00000.png"
    assert test["classes"] == ["0_real", "1_fake"]
    assert ductwork("data", "prepare", "cddb-hard", "--root", root).code == 1
    assert len(list((cache / "ductwork" / "index").iterdir())) == 1


def test_a_complete_download(ductwork: Command, tmp_path: Path) -> None:
    for domain, n in {"Art": 2427, "Clipart": 4365, "Product": 4439, "Real World": 4357}.items():
        for i in range(65):
            (tmp_path / "home" / domain / f"c{i:02d}").mkdir(parents=True)
        for i in range(n):
            (tmp_path / "home" / domain / f"c{i % 65:02d}" / f"{i:05d}.jpg").touch()
    done = ductwork("data", "prepare", "office-home", "--root", tmp_path / "home")
    assert done.code == 0, done.out
    assert "differs" not in done.out
    assert ["all", "classes", "65", "65", "ok"] in [line.split("\t") for line in done.out.splitlines()]


def test_prepare_names_all_that_is_missing(ductwork: Command, tmp_path: Path) -> None:
    root = office_home(tmp_path / "home")
    for name in ("Art", "Product"):
        (root / name).rename(tmp_path / name)
    done = ductwork("data", "prepare", "office-home", "--root", root)
    assert done.code == 2
    assert "'Art' is missing" in done.err
    assert "'Product' is missing" in done.err
    assert "did you mean 'core50'" in ductwork("data", "prepare", "core5").err


def test_totals_count_all_domains(tmp_path: Path) -> None:
    rows = compare(facts_of("core50"), open_stream("core50", root=core50(tmp_path)))
    totals = {row.split: (row.found, row.expected) for row in rows if row.domain == "all"}
    assert totals == {"train": (48, 119894), "test": (18, 44972), "classes": (3, 50)}
    assert sum(row.expected is None for row in rows) == 11


def test_the_index_stays_out_of_the_data(ductwork: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = core50(tmp_path / "core")
    monkeypatch.setenv("XDG_CACHE_HOME", str(root / "cache"))
    done = ductwork("data", "prepare", "core50", "--root", root)
    assert done.code == 2
    assert "lies in the data folder" in done.err
    assert not (root / "cache").exists()


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder() == tmp_path / "cache" / "ductwork"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert cache_folder().is_absolute()

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert cache_folder().is_absolute()
