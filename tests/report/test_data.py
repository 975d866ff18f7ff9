"""What stands behind the page: groups, matrices, sentences, tables and the placing of labels."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from pathlib import Path

import pytest

from ductwork.report import collect, layout, reading, tables, writers
from ductwork.report.aggregate import Group, Stat, groups
from ductwork.report.parts import round_numbers
from ductwork.report.style import Palette
from tests.report.runs import write_run


def group_of(root: Path, *runs: tuple[str, float | None, float | None]) -> Group:
    for method, last, forgot in runs:
        write_run(root / method, method, A_B=last, forgetting=forgot)
    return groups(collect([root]))[0]


def test_population_deviation_without_what_is_not_finite() -> None:
    assert Stat.of([1.0, 3.0, None, float("nan")]) == Stat(2.0, 1.0, 2)
    assert Stat.of([None]) is None


def test_the_sentence_says_who_forgot(tmp_path: Path) -> None:
    group = group_of(tmp_path, ("duct", 86.1, 0.5), ("finetune", 73.8, 18.4), ("simplecil", 80.0, 0.0))
    assert reading.sentence(group).replace("\u00a0", " ") == (
        "After the last domain duct is right on 86.1 % of all test images, 12.3 points more than finetune, "
        "which forgot 18.4 points of what it once knew; duct itself forgot 0.5."
    )


def test_the_sentence_is_honest_when_duct_loses(tmp_path: Path) -> None:
    group = group_of(tmp_path, ("duct", 70.0, 9.0), ("finetune", 60.0, 20.0), ("simplecil", 80.0, -0.4))
    assert reading.sentence(group).replace("\u00a0", " ") == (
        "After the last domain simplecil is right on 80.0 % of all test images, 20.0 points more than finetune, "
        "which forgot 20.0 points of what it once knew; simplecil itself gained 0.4 points on earlier domains. "
        "duct ends 10.0 points behind it and forgot 9.0."
    )


def test_the_sentence_without_results(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "duct", status="running", stages=1)
    assert "No run on digits is finished" in reading.sentence(groups(collect([tmp_path]))[0])


def test_a_lead_within_the_spread_is_said_to_be_one(tmp_path: Path) -> None:
    for i in range(2):
        write_run(tmp_path / f"d{i}", "duct", seed=i, A_B=80.0 + 4 * i)
        write_run(tmp_path / f"f{i}", "finetune", seed=i, A_B=79.0 + 4 * i)
    assert "within the spread" in reading.sentence(groups(collect([tmp_path]))[0])


def test_verdicts(tmp_path: Path) -> None:
    group = group_of(tmp_path, ("duct", 86.1, 3.0), ("finetune", 73.8, 18.4), ("simplecil", 80.0, 0.0), ("l2p", 1, 5.0))
    said = {v.method: reading.verdict(v)[0] for v in group.variants}
    assert said == {"duct": "keeps", "finetune": "forgets", "simplecil": "keeps, never trains", "l2p": "loses some"}


def test_the_upper_bound_is_measured_and_does_not_compete(tmp_path: Path) -> None:
    write_run(tmp_path / "j", "joint", params={"last_only": True}, A_B=95.0)
    group = group_of(tmp_path, ("duct", 86.1, 0.5), ("finetune", 73.8, 18.4))
    said = reading.sentence(group).replace("\u00a0", " ")
    assert said.startswith("After the last domain duct is right on 86.1 %")
    assert said.endswith("Training on all domains at once, the upper bound, reaches 95.0 %.")
    bound = group.variants[0]
    assert (bound.method, reading.verdict(bound)[0]) == ("joint", "upper bound")
    assert [stat.mean for stat in bound.curve if stat] == [95.0] * 4, "nothing was trained on the way"
    table = tables.headline(group)
    assert [row[1].best for row in table.rows] == [False, True, False]
    average = [column.name for column in table.columns].index("Average accuracy")
    assert (table.rows[0][average].text, bound.average, bound.forgetting) == ("", None, None)
    write_run(tmp_path / "every" / "j", "joint", params={"last_only": False}, A_B=95.0)
    every = groups(collect([tmp_path / "every"]))[0].variants[0]
    assert every.average is not None and len({stat.mean for stat in every.curve if stat}) > 1


def test_matrix_is_a_mean_over_runs_of_one_order_only(tmp_path: Path) -> None:
    domains = ["a", "b", "c"]
    same = [write_run(tmp_path / str(seed), "duct", domains, seed=seed) for seed in (1, 2)]
    write_run(tmp_path / "other", "duct", ["c", "b", "a"])
    group = groups(collect([tmp_path]))[0]
    matrix = group.variants[0].matrix(group.order)
    assert (matrix.rows, matrix.columns, matrix.runs) == (("a", "b", "c"), ("a", "b", "c"), 2)
    assert matrix.values[0][1:] == (None, None)
    expected = sum(r["stages"][2]["accuracy"]["b"] for r in same) / 2
    assert matrix.values[2][1] == pytest.approx(expected)


def test_columns_of_a_stream_with_its_own_tests(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "duct", ["s1", "s2"], own_tests=("s3", "s7"))
    variant = groups(collect([tmp_path]))[0].variants[0]
    matrix = variant.matrix(("s1", "s2"))
    assert (matrix.rows, matrix.columns) == (("s1", "s2"), ("s3", "s7"))
    assert [kept.domain for kept in variant.kept()] == ["s3", "s7"]


def test_settings_tell_variants_apart_and_backbones_are_not_mixed(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "duct", params={"alpha": 0.1, "same": 1})
    write_run(tmp_path / "b", "duct", params={"alpha": 0.2, "same": 1})
    write_run(tmp_path / "c", "duct", backbone={"name": "other", "sha256": "1"})
    labels = [sorted(v.label for v in group.variants) for group in groups(collect([tmp_path]))]
    assert labels == [["duct (alpha=0.1)", "duct (alpha=0.2)"], ["duct"]]


def test_best_is_marked_and_ties_share_it(tmp_path: Path) -> None:
    table = tables.headline(
        group_of(tmp_path, ("duct", 86.101, 0.5), ("finetune", 86.1, 18.4), ("l2p", None, 1.0), ("ease", 80.0, 1.0))
    )
    best = [row[1].best for row in table.rows]
    assert best == [True, True, False, False]
    assert table.rows[3][1].text == tables.NA
    passes = [column.name for column in table.columns].index("Parameters")
    assert any(row[passes].best for row in table.rows)


def test_writers(tmp_path: Path) -> None:
    write_run(tmp_path / "1", "duct", A_B=80.0, params={})
    write_run(tmp_path / "2", "duct", A_B=82.0, seed=2, params={})
    write_run(tmp_path / "3", "fine_tune|&%", A_B=70.123456)
    table = tables.headline(groups(collect([tmp_path]))[0])
    rows = list(csv.DictReader(io.StringIO(writers.to_csv(table))))
    assert float(rows[0]["Last accuracy (A_B, %)"]) == 81.0
    assert float(rows[0]["Last accuracy (A_B, %) std"]) == 1.0
    assert float(rows[1]["Last accuracy (A_B, %)"]) == 70.123456
    markdown = writers.to_markdown(table)
    assert "| duct | **81.00 ± 1.00** |" in markdown
    assert "fine_tune\\|&%" in markdown
    latex = writers.to_latex(table)
    assert r"\textbf{81.00 $\pm$ 1.00}" in latex
    assert r"fine\_tune|\&\%" in latex


def test_labels_never_overlap() -> None:
    wanted = [50.0, 50.0, 50.1, 10.0, 49.0, 99.0, 99.5]
    placed = layout.spread(wanted, 10, 0, 100)
    assert all(b - a >= 10 - 1e-9 for a, b in zip(sorted(placed), sorted(placed)[1:], strict=False))
    assert min(placed) >= 0
    assert max(placed) <= 100
    assert wanted.index(min(wanted)) == placed.index(min(placed))
    assert layout.spread([5.0, 80.0], 10, 0, 100) == [5.0, 80.0]
    crowded = layout.spread([50.0] * 30, 10, 0, 100)
    assert crowded == pytest.approx(sorted(crowded))
    assert max(crowded) <= 100 + 1e-9


def test_placed_labels_keep_off_each_other() -> None:
    points = [(50.0 + i % 3, 50.0 + i % 2) for i in range(6)]
    boxes = [(x, y, x + 30, y + 8) for x, y in layout.place(points, [(30.0, 8.0)] * 6, (0, 0, 200, 200))]
    for i, a in enumerate(boxes):
        for b in boxes[i + 1 :]:
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]


def test_round_numbers() -> None:
    assert round_numbers(61.3, 93.0, 5) == [70.0, 80.0, 90.0]
    assert round_numbers(0.0, 1.0, 5) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert round_numbers(50, 2e6, 5, log=True) == [100.0, 1e3, 1e4, 1e5, 1e6]


def test_methods_keep_their_colour_and_share_none() -> None:
    some, more = Palette(["duct", "mine"]), Palette(["mine", "duct", "finetune", "DUCT", "coda-prompt", "other"])
    assert some.colour("duct") == more.colour("duct") == more.colour("DUCT")
    names = ["mine", "duct", "finetune", "coda-prompt", "other"]
    assert len({more.colour(name) for name in names}) == len(names)


def test_importing_the_report_is_light() -> None:
    code = "import sys, ductwork.report; print([m for m in ('matplotlib', 'jinja2', 'torch') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_figures_export_at_any_resolution(tmp_path: Path) -> None:
    from ductwork.report import figures

    write_run(tmp_path / "a", "duct")
    group = groups(collect([tmp_path]))[0]
    figure = figures.curves(group, group.drawn, Palette(["duct"]))
    figure.savefig(tmp_path / "a.png", dpi=144)
    figure.savefig(tmp_path / "a.svg")
    header = (tmp_path / "a.png").read_bytes()[16:24]
    assert (int.from_bytes(header[:4], "big"), int.from_bytes(header[4:], "big")) == (1560, 640)
    assert b"#0072b2" in (tmp_path / "a.svg").read_bytes()


def test_equal_numbers_have_no_deviation() -> None:
    assert Stat.of([1.4, 1.4, 1.4]) == Stat(1.4, 0.0, 3)
