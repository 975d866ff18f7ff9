"""Bad input ends with one clear line that says what is wrong, where, and what to type instead; exit code 2."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.cli.conftest import Command, Outcome, is_root, quick

Make = Callable[[Path], list[object]]


def photos(root: Path, layout: dict[str, int] | None = None) -> Path:
    """A folder of domains: ``{"studio/cat": 4}`` is four images."""
    draw = np.random.default_rng(0)
    for place, count in (layout or {"studio/cat": 4, "studio/dog": 4, "street/cat": 4, "street/dog": 4}).items():
        (root / place).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            Image.fromarray(draw.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(root / place / f"{i}.png")
    return root


def run(*settings: object) -> Make:
    return lambda tmp: ["run", *quick(*map(str, settings)), "--out", tmp / "out"]


def on_photos(
    layout: dict[str, int] | None = None, *settings: object, spoil: Callable[[Path], object] | None = None
) -> Make:
    def make(tmp: Path) -> list[object]:
        root = photos(tmp / "photos", layout)
        if spoil is not None:
            spoil(root)
        return ["run", *quick(f"stream={root}", *map(str, settings)), "--out", tmp / "out"]

    return make


def config(text: str) -> Make:
    def make(tmp: Path) -> list[object]:
        (tmp / "run.yaml").write_text(text)
        return ["run", tmp / "run.yaml", "--out", tmp / "out"]

    return make


def weights(name: str, content: bytes) -> Make:
    def make(tmp: Path) -> list[object]:
        (tmp / name).write_bytes(content)
        return ["run", *quick(f"weights={tmp / name}"), "--out", tmp / "out"]

    return make


def truncate(root: Path) -> None:
    for path in (root / "studio" / "cat").iterdir():
        path.write_bytes(path.read_bytes()[:60])


CASES: dict[str, tuple[Make, str]] = {
    "unknown method": (run("method=ductt"), "did you mean 'duct'"),
    "unknown recipe": (run("recipe=papr"), "did you mean 'paper'"),
    "unknown parameter": (run("params.epoch=3"), "did you mean 'epochs'"),
    "unknown key": (run("sead=3"), "did you mean 'seed'"),
    "unknown engine key": (run("engine.worker=3"), "did you mean 'workers'"),
    "impossible value": (run("params.epochs=-1"), "epochs = -1"),
    "value of the wrong kind": (run("seed=soon"), "seed = 'soon'"),
    "alpha over one": (run("params.alpha_w=1.5"), "alpha_w = 1.5"),
    "not a setting": (run("fast"), "key=value"),
    "unknown stream": (run("stream=demmo"), "did you mean 'demo'"),
    "unknown backbone": (run("backbone=vit_bse_patch16_224"), "vit_base_patch16_224"),
    "unknown domain in order": (run("order=[handwriten]"), "handwritten"),
    "order number too high": (run("order=17"), "17"),
    "unknown transform": (run("transform=papr"), "did you mean 'paper'"),
    "missing folder": (lambda tmp: ["run", f"stream={tmp / 'nowhere'}", "--out", tmp / "out"], "nowhere"),
    "empty class": (on_photos(spoil=lambda root: (root / "street" / "fish").mkdir()), "fish"),
    "one class only": (on_photos({"studio/cat": 4, "street/cat": 4}), "cat"),
    "images without classes": (on_photos({"studio": 4, "street": 4}), "<domain>/<class>/<image>"),
    "unreadable image": (on_photos(spoil=truncate), "studio/cat"),
    "missing file": (lambda tmp: ["run", tmp / "missing.yaml"], "missing.yaml"),
    "not YAML": (config("a: [1"), "is not YAML"),
    "a list for a configuration": (config("- duct"), "key: value"),
    "weights that are no weights": (weights("w.safetensors", b"nonsense" * 10), "w.safetensors"),
    "weights of an unknown kind": (weights("w.onnx", b"x"), "w.onnx"),
    "missing weights": (run("weights=/nowhere/w.pth"), "w.pth"),
    "no GPU here": (run("engine.accelerator=cuda"), "cuda"),
    "fp16 on a processor": (run("engine.precision=fp16", "engine.accelerator=cpu"), "fp16"),
    "report of nothing": (lambda tmp: ["report", tmp, "--out", tmp / "r.html"], "result.json"),
    "report of a missing folder": (lambda tmp: ["report", tmp / "none", "--out", tmp / "r.html"], "none"),
    "unknown method in the demo": (lambda tmp: ["demo", "--methods", "dukt", "--out", tmp], "did you mean 'duct'"),
    "folder of something else": (
        lambda tmp: [(tmp / "mine.txt").write_text("x") and "run", *quick(), "--out", tmp],
        "mine.txt",
    ),
    "a file for a folder": (
        lambda tmp: [(tmp / "f").write_text("x") and "run", *quick(), "--out", tmp / "f"],
        "not a folder",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_one_clear_line_and_exit_code_2(case: str, ductwork: Command, tmp_path: Path) -> None:
    make, words = CASES[case]
    assert_clear(ductwork(*make(tmp_path)), words)


def assert_clear(outcome: Outcome, words: str) -> None:
    assert outcome.code == 2, outcome
    lines = outcome.err.strip().splitlines()
    assert len(lines) == 1, outcome.err
    assert lines[0].startswith("ductwork: ")
    assert words in lines[0]
    assert "Traceback" not in outcome.err


@pytest.mark.skipif(is_root(), reason="root may write everywhere")
def test_no_write_permission(ductwork: Command, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    assert_clear(ductwork("run", *quick(), "--out", locked / "run"), "locked")


def test_a_place_that_cannot_be_written(ductwork: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert_clear(ductwork("run", *quick(), "--out", tmp_path / "file" / "run"), "file")


def test_another_run_in_the_folder(ductwork: Command, tmp_path: Path) -> None:
    words = ["run", "stream=demo", "method=simplecil", "engine.workers=0", "order=[handwritten]"]
    assert ductwork(*words, "--out", tmp_path / "r").code == 0
    assert_clear(ductwork(*words, "seed=4", "--out", tmp_path / "r"), "seed = 1993")


def test_damaged_checkpoint(ductwork: Command, tmp_path: Path) -> None:
    words = [
        "run",
        "stream=demo",
        "method=simplecil",
        "engine.workers=0",
        "order=[handwritten]",
        "--out",
        tmp_path / "r",
    ]
    assert ductwork(*words).code == 0
    result = json.loads((tmp_path / "r" / "result.json").read_text())
    (tmp_path / "r" / "result.json").write_text(json.dumps({**result, "status": "running"}))
    part = next((tmp_path / "r" / "checkpoint").glob("*.safetensors"))
    part.write_bytes(part.read_bytes()[:-1] + b"\0\1")
    assert_clear(ductwork(*words), "damaged")


def test_result_that_is_no_result(ductwork: Command, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text("{}")
    assert_clear(ductwork("report", tmp_path, "--out", tmp_path / "r.html"), "result.json")


def test_debug_shows_the_traceback(ductwork: Command, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"no domain|there is no|unknown method"):
        ductwork("--debug", "run", "method=ductt", "--out", tmp_path / "out")


def test_images_changed_since_the_run_was_begun(ductwork: Command, tmp_path: Path) -> None:
    root = photos(tmp_path / "photos")
    words = ["run", f"stream={root}", "method=simplecil", "engine.workers=0", "--out", tmp_path / "r"]
    assert ductwork(*words).code == 0
    result = json.loads((tmp_path / "r" / "result.json").read_text())
    (tmp_path / "r" / "result.json").write_text(json.dumps({**result, "status": "running"}))
    shutil.copy(root / "studio" / "cat" / "0.png", root / "studio" / "cat" / "9.png")
    assert_clear(ductwork(*words), "images changed")
