"""Tables and maps that appear when runs are those of a study, and only then."""

from __future__ import annotations

from pathlib import Path

import pytest

from ductwork.report import collect
from ductwork.report.aggregate import Group, groups
from ductwork.report.content import Context
from ductwork.report.studies import ablation, across, orders, robustness, sweeps, upper_bound
from ductwork.report.style import Palette
from tests.report.runs import write_run


def context(root: Path) -> Context:
    (group,) = groups(collect([root]))
    return Context(group, Palette(v.method for v in group.variants), "p")


def group(root: Path) -> Group:
    return context(root).group


def test_a_grid_of_two_parameters(tmp_path: Path) -> None:
    for phi in (0.1, 0.5, 1.0):
        for w in (0.25, 0.5):
            write_run(
                tmp_path / f"{phi}-{w}", "duct", params={"alpha_phi": phi, "alpha_w": w, "epochs": 8}, A_B=80 + phi + w
            )
    (sweep,) = sweeps(group(tmp_path))
    assert (sweep.names, sweep.values) == (("alpha_phi", "alpha_w"), ((0.1, 0.5, 1.0), (0.25, 0.5)))
    matrix = sweep.matrix("A_B")
    assert (matrix.rows, matrix.columns) == (("0.1", "0.5", "1"), ("0.25", "0.5"))
    assert matrix.values[2] == pytest.approx((81.25, 81.5))
    section = robustness(context(tmp_path))
    assert section is not None
    assert "Last accuracy: best 81.50 % at alpha_phi = 1, alpha_w = 0.5; worst 80.35 %" in section.blocks[0].caption
    assert len(section.blocks[0].pictures) == 2


@pytest.mark.parametrize("params", [["alpha_phi"], ["alpha_phi", "alpha_w", "epochs"]])
def test_one_or_three_parameters_are_no_grid(tmp_path: Path, params: list[str]) -> None:
    for i in range(5):
        write_run(tmp_path / str(i), "duct", params={name: i * (n + 1) % 4 for n, name in enumerate(params)}, seed=i)
    assert robustness(context(tmp_path)) is None


def test_ablation_in_its_order_with_steps(tmp_path: Path) -> None:
    for i, recipe in enumerate(("paper", "baseline", "variation-2")):
        write_run(tmp_path / recipe, "duct", recipe=recipe, params={"recipe": recipe}, A_B=90.0 - 10 * i)
    section = ablation(context(tmp_path))
    assert section is not None and section.blocks[0].table is not None
    rows = section.blocks[0].table.rows
    assert [row[0].text for row in rows] == ["Baseline", "Variation 2", "DUCT"]
    assert [row[4].text for row in rows] == ["", "−10.0", "+20.0"]
    assert ablation(Context(groups(collect([tmp_path / "paper"]))[0], Palette(["duct"]), "p")) is None


def test_distance_to_joint_training(tmp_path: Path) -> None:
    write_run(tmp_path / "j", "joint", A_B=90.0)
    write_run(tmp_path / "d", "duct", A_B=85.0)
    section = upper_bound(context(tmp_path))
    assert section is not None and section.blocks[0].table is not None
    joint, duct = section.blocks[0].table.rows
    assert (joint[0].text, joint[2].text) == ("joint", "")
    assert [duct[2].value, duct[3].value] == pytest.approx([5.0, 1.5])
    assert upper_bound(Context(groups(collect([tmp_path / "d"]))[0], Palette(["duct"]), "p")) is None


def test_orders_are_named_by_the_papers_number(tmp_path: Path) -> None:
    for n, order in enumerate(
        (["Clipart", "Product", "Real_World", "Art"], ["Art", "Clipart", "Product", "Real_World"])
    ):
        write_run(tmp_path / str(n), "duct", order, stream="office-home", A_B=80.0 + n)
    section = orders(context(tmp_path))
    assert section is not None and section.blocks[0].table is not None
    table = section.blocks[0].table
    assert [column.name for column in table.columns] == ["Method", "Order 1", "Order 1", "Order 2", "Order 2"]
    assert [table.rows[0][i].value for i in (2, 4)] == [81.0, 80.0]
    assert orders(Context(groups(collect([tmp_path / "0"]))[0], Palette(["duct"]), "p")) is None


def test_all_results_side_by_side(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "duct", stream="one", A_B=80.0)
    write_run(tmp_path / "b", "duct", stream="two", A_B=70.0)
    write_run(tmp_path / "c", "ease", stream="two", A_B=75.0)
    found = groups(collect([tmp_path]))
    section = across(found)
    assert section is not None and section.blocks[0].table is not None
    table = section.blocks[0].table
    last = {
        row[0].text: {c.name: one.text for c, one in zip(table.columns[2::2], row[2::2], strict=True)}
        for row in table.rows
    }
    assert last == {"duct": {"one": "80.00", "two": "70.00"}, "ease": {"one": "NA", "two": "75.00"}}
    assert across(found[:1]) is None
