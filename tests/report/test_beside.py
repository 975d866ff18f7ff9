"""Published numbers stand beside runs of the same stream, backbone, method, recipe and order, and beside no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ductwork.experiments.published import published
from ductwork.report import collect, writers
from ductwork.report.aggregate import groups
from ductwork.report.beside import beside, pairs
from ductwork.report.content import Context, Section
from ductwork.report.style import Palette
from tests.report.runs import write_run
from tests.report.test_page import build

IN1K = {"name": "vit-b16-in1k", "sha256": "5f" * 32}
ORDERS = published().orders


def run(root: Path, method: str, stream: str = "office-home", order: int = 1, **more: Any) -> dict[str, Any]:
    name = f"{stream}-{method}-{order}-{more.get('seed', 1)}-{more.get('recipe', '')}"
    return write_run(root / name, method, ORDERS[stream][order - 1], **{"stream": stream, "backbone": IN1K, **more})


def section(root: Path) -> Section | None:
    found = groups(collect([root]))
    return beside(found, Context(found[0], Palette(v.method for g in found for v in g.variants), "p"))


def test_an_order_beside_its_table(tmp_path: Path) -> None:
    result = run(tmp_path, "duct", order=2, recipe="official")
    found = section(tmp_path)
    assert found is not None
    pictures, block = found.blocks
    assert len(pictures.pictures) == 2  # average and last accuracy
    assert block.table is not None and block.table.title == "Supplement, order 2"
    (row,) = block.table.rows
    known = published().find("order-2", "duct", "office-home", "A_B")
    assert known is not None and known.value is not None
    names = [column.name for column in block.table.columns]
    last = names.index("Last accuracy, published")
    assert row[last].value == known.value
    assert row[last + 1].value == result["A_B"]
    assert row[last + 2].value == pytest.approx(result["A_B"] - known.value)
    assert row[0].method == "duct"


@pytest.mark.parametrize(
    "change",
    [{"backbone": {"name": "other", "sha256": "1"}}, {"status": "running", "stages": 2}, {"stream": "photos"}],
    ids=["backbone", "unfinished", "stream"],
)
def test_what_differs_is_not_compared(tmp_path: Path, change: dict[str, Any]) -> None:
    run(tmp_path, "duct", **change) if "stream" not in change else write_run(tmp_path / "a", "duct", backbone=IN1K)
    assert section(tmp_path) is None


def test_another_order_is_not_compared(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "duct", ["Product", "Art"], stream="office-home", backbone=IN1K)
    assert section(tmp_path) is None


def test_means_over_orders_need_every_order(tmp_path: Path) -> None:
    for order in (1, 2, 3, 4):
        run(tmp_path, "finetune", order=order, A_B=70.0)
    assert set(pairs(groups(collect([tmp_path])))) == {f"order-{n}" for n in (1, 2, 3, 4)}
    # a second seed of one order must not make that order count twice
    run(tmp_path, "finetune", order=5, A_B=80.0)
    run(tmp_path, "finetune", order=5, A_B=90.0, seed=2)
    found = {p.fact.metric: p for p in pairs(groups(collect([tmp_path])))["table-1"]}
    assert found["A_B"].obtained.mean == pytest.approx((4 * 70 + 85) / 5)
    assert found["A_B"].runs == 6


def test_flags_become_marks_and_notes(tmp_path: Path) -> None:
    for order in range(1, 6):
        run(tmp_path, "finetune", "domainnet", order)
    found = section(tmp_path)
    assert found is not None
    table = next(b.table for b in found.blocks if b.table is not None and b.table.title == "Table 1")
    marks = {cell.mark for cell in table.rows[0] if cell.mark}
    assert {mark for mark, _ in table.notes} == marks != set()
    assert any("swapped" in text for _, text in table.notes)
    assert "28.17 ± 6.47 [a]" in writers.to_markdown(table)
    assert "<sup>a</sup>" in writers.to_html(table)
    assert r"\textsuperscript{a}" in writers.to_latex(table)
    assert "swapped" in writers.to_csv(table)


def test_the_ablation_is_compared_recipe_by_recipe(tmp_path: Path) -> None:
    for recipe in ("baseline", "variation-3"):
        run(tmp_path, "duct", "cddb-hard", 4, recipe=recipe, params={"recipe": recipe})
    found = pairs(groups(collect([tmp_path])))["table-2"]
    recipes = [(p.fact.recipe, p.variant.runs[0].result.recipe) for p in found]
    assert set(recipes) == {("baseline", "baseline"), ("variation-3", "variation-3")}


def test_a_grid_of_parameters_is_not_compared(tmp_path: Path) -> None:
    for seed, (phi, w) in enumerate([(0.1, 0.1), (0.1, 0.5), (0.5, 0.1), (0.5, 0.5)]):
        run(tmp_path, "duct", seed=seed, params={"alpha_phi": phi, "alpha_w": w})
    assert section(tmp_path) is None


def test_what_is_printed_as_not_applicable_has_no_difference(tmp_path: Path) -> None:
    write_run(
        tmp_path / "a",
        "ease",
        ORDERS["domainnet"][0],
        stream="domainnet",
        backbone={"name": "resnet101", "sha256": "2"},
    )
    (pair,) = pairs(groups(collect([tmp_path])))["more-backbones"]
    assert (pair.fact.value, pair.difference) == (None, None)


def test_it_is_on_the_page(tmp_path: Path) -> None:
    for order in range(1, 6):
        run(tmp_path / "runs", "finetune", "domainnet", order)
    page, html = build(tmp_path / "runs")
    assert "Published beside obtained" in page.text
    assert "28.17 ± 6.47a" in page.text and "columns of this row are swapped" in page.text
    assert any(
        label.startswith("domainnet: last accuracy, published and obtained. finetune 38.8") for label in page.labels
    )
    assert "#paper" in page.refs and 'id="paper"' in html
