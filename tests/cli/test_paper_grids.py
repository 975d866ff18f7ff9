"""The paper's grids, from the first command to the last, on miniature copies of its four benchmarks."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from pathlib import Path

import pytest
from safetensors.torch import save_file

from ductwork.experiments.grid import load_grid
from ductwork.experiments.plan import make_plan
from ductwork.experiments.published import published
from tests.cli.conftest import Command, quick
from tests.conftest import SIZE, tiny_backbone
from tests.data.miniatures import cddb, core50, domainnet, office_home

GRIDS = sorted((Path(__file__).parent.parent.parent / "configs" / "paper").glob("*.yaml"))
STREAMS = ("office-home", "domainnet", "core50", "cddb-hard")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One root for all four, as a user would have it."""
    root = tmp_path_factory.mktemp("data")
    office_home(root / "office-home", n=3)
    domainnet(root / "domainnet", [(i, f"class{i:03d}") for i in range(0, 345, 69)], train=2)
    core50(root / "core50", objects=(1, 2))
    cddb(root / "cddb-hard", n=2)
    return root


@pytest.fixture(scope="module")
def small(data: Path) -> Sequence[str]:
    """What a user types to try a grid: where the data lie, a small backbone, one epoch."""
    weights = data / "tiny.safetensors"
    save_file({key: value.contiguous() for key, value in tiny_backbone().state_dict().items()}, weights)
    backbone = f"{{backbone: test_vit, weights: {weights}, image_size: {SIZE}}}"
    methods = ["params.retrain_views=1", "params.projection=100", "params.epochs_later=1"]
    engine = ["engine.accelerator=cpu", "engine.checkpoint=stage"]
    return [f"root={data}", f"backbones=[{backbone}]", *quick(*methods, *engine)]


def fitting(grid: Path, settings: Sequence[str], methods: Set[str] = frozenset()) -> list[str]:
    """Without settings of methods that the grid does not have: those would be mistakes."""
    names = methods or {str(m if isinstance(m, str) else m["method"]) for m in load_grid(grid).methods}
    needs = {
        "projection": {"ranpac"},
        "epochs_later": {"s-iprompt"},
        "retrain_epochs": {"duct"},
        "retrain_views": {"duct"},
    }
    return [s for s in settings if names & needs.get(s.removeprefix("params.").partition("=")[0], names)]


@pytest.mark.parametrize("grid", [g for g in GRIDS if g.stem != "class-incremental"], ids=lambda g: g.stem)
def test_every_grid_can_be_begun(grid: Path, small: Sequence[str], tmp_path: Path) -> None:
    plan = make_plan(load_grid(grid, fitting(grid, small)), tmp_path)
    said = re.search(r"^# (\d+) runs", grid.read_text(), flags=re.MULTILINE)
    expected = int(said[1]) if said else 0
    # here there is one backbone instead of five
    assert len(plan.tasks) == expected // (5 if grid.stem == "more-backbones" else 1) > 0


@pytest.mark.parametrize("grid", GRIDS, ids=lambda g: g.stem)
def test_every_grid_says_what_to_type(grid: Path) -> None:
    head = grid.read_text().split("\nbase:")[0].split("\nstreams:")[0]
    assert f"ductwork bench configs/paper/{grid.name} root=DATA" in head
    assert "ductwork report runs/" in head
    streams = {s if isinstance(s, str) else s["stream"] for s in load_grid(grid).streams}
    assert streams <= set(published().orders)


def test_ablation_and_t_sne(ductwork: Command, data: Path, small: Sequence[str], tmp_path: Path) -> None:
    for grid in (GRIDS[0].with_name("table-2.yaml"), GRIDS[0].with_name("tsne.yaml")):
        done = ductwork("bench", grid, *fitting(grid, small), "--out", tmp_path / grid.stem, "--jobs", 1)
        assert done.code == 0, done.err
    files = tmp_path / "files"
    page = tmp_path / "report.html"
    assert ductwork("report", tmp_path / "table-2", tmp_path / "tsne", "--out", page, "--files", files).code == 0
    text = page.read_text(encoding="utf-8")
    for words in ("What each part adds", "Variation 3", "The space before and after", "class069"):
        assert words in text
    assert {p.name for p in files.glob("domainnet*/t-sne-*")} == {
        f"t-sne-{what}.{kind}"
        for what in ("before-pre-trained", "after-duct", "after-finetune")
        for kind in ("svg", "png")
    }
    assert {p.suffix for p in files.glob("cddb-hard*/ablation.*")} == {".html", ".md", ".tex", ".csv"}


@pytest.mark.slow
def test_table_1_from_the_first_command_to_the_last(
    ductwork: Command, data: Path, small: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in STREAMS:
        prepared = ductwork("data", "prepare", name, "--root", data)
        assert "index: " in prepared.out
        assert prepared.code == 1, "a miniature is no complete download, and is said not to be one"
    grid = next(g for g in GRIDS if g.stem == "table-1")
    out = ("--out", tmp_path / "runs", "--jobs", 2)
    three = "methods=[finetune,simplecil,{method: duct, recipe: official}]"
    # all four benchmarks, then all twelve methods: what both have is done once
    done = ductwork("bench", grid, *fitting(grid, small, {"duct"}), "orders=[1]", three, *out)
    assert done.code == 0, done.out + done.err
    done = ductwork("bench", grid, *small, "orders=[1]", "streams=[cddb-hard]", *out)
    assert done.code == 0, done.out + done.err
    assert "12 runs in" in done.out and "3 done, 9 left" in done.out
    page = tmp_path / "table-1.html"
    assert ductwork("report", tmp_path / "runs", "--out", page).code == 0
    text = page.read_text(encoding="utf-8")
    assert "12 methods, 21 runs" in text
    assert "All results" in text
