"""The paper's numbers agree with each other wherever no flag says otherwise."""

from __future__ import annotations

import statistics
from collections import Counter

import pytest

from ductwork.backbones import catalog
from ductwork.data.streams import orders_of
from ductwork.experiments.published import Log, published
from ductwork.methods import registry

PAPER = published()
STREAMS = ("office-home", "domainnet", "core50", "cddb-hard")
COUNTS = {
    "table-1": 12 * 4 * 2, **{f"order-{n}": 12 * 4 * 2 for n in range(1, 6)}, "table-2": 5 * 2, "more-backbones": 4 * 5,
    "upper-bound": 4, "class-incremental": 4 * 2, "forgetting": 1,
}  # fmt: skip
TEST_IMAGES = {
    "Art": 729, "Clipart": 1310, "Product": 1332, "Real_World": 1308, "clipart": 14604, "infograph": 15582,
    "painting": 21850, "quickdraw": 51750, "real": 52041, "sketch": 20916, "gaugan": 2000, "biggan": 800, "wild": 2063,
    "whichfaceisreal": 400, "san": 90,
}  # fmt: skip


def test_every_table_is_whole_and_no_cell_is_there_twice() -> None:
    assert Counter(fact.source for fact in PAPER.facts) == COUNTS
    assert set(PAPER.sources) == set(COUNTS)
    cells = [(f.source, f.method, f.stream, f.backbone, f.metric, f.recipe) for f in PAPER.facts]
    assert len(set(cells)) == len(cells)


def test_names_are_those_of_the_package() -> None:
    assert {fact.method for fact in PAPER.facts} == set(registry.methods())
    assert {fact.backbone for fact in PAPER.facts} <= {entry.name for entry in catalog.available()}
    recipes = {fact.recipe for fact in PAPER.facts if fact.recipe}
    assert recipes <= set(registry.find("duct").recipes)
    assert {stream: orders_of(stream) for stream in PAPER.orders} == PAPER.orders


def test_table_1_is_the_mean_of_the_order_tables_or_flagged() -> None:
    flagged = 0
    for fact in PAPER.of("table-1"):
        found = [PAPER.find(f"order-{n}", fact.method, fact.stream, fact.metric) for n in range(1, 6)]
        values = [one.value for one in found if one is not None and one.value is not None]
        assert len(values) == 5
        assert fact.value is not None
        assert fact.std is not None
        mean, deviation = statistics.fmean(values), statistics.pstdev(values)
        # The largest deviations are printed with one digit.
        agrees = abs(fact.value - mean) < 0.016 and abs(fact.std - deviation) < (0.06 if fact.std > 10 else 0.016)
        if not agrees:
            assert f"{mean:.2f} ± {deviation:.2f}" in fact.flag, fact
            flagged += 1
        else:
            assert not fact.flag, fact
    assert flagged == 22


def test_known_slips_are_flagged_and_kept() -> None:
    swapped = PAPER.find("table-1", "finetune", "domainnet", "A_bar")
    assert swapped is not None
    assert swapped.value == 28.17
    assert "swapped" in swapped.flag
    for order, other in ((3, 2), (4, 5), (5, 1)):
        fact = PAPER.find(f"order-{order}", "coda-prompt", "office-home", "A_bar")
        double = PAPER.find(f"order-{other}", "coda-prompt", "cddb-hard", "A_bar")
        assert fact is not None
        assert double is not None
        assert fact.value == double.value
        assert f"CDDB order {other}" in fact.flag
    forgetting = PAPER.of("forgetting")[0]
    assert (forgetting.value, bool(forgetting.flag)) == (0.12, True)


def test_duct_agrees_with_itself() -> None:
    assert not [f for f in PAPER.facts if f.method == "duct" and f.flag and f.source not in ("table-2", "forgetting")]


def test_what_a_backbone_cannot_do_is_none() -> None:
    assert {f.method for f in PAPER.of("more-backbones") if f.value is None and f.backbone == "resnet101"} == {
        "coda-prompt", "ease", "s-iprompt"}  # fmt: skip
    assert all(fact.value is not None for fact in PAPER.facts if fact.backbone != "resnet101")


@pytest.mark.parametrize("log", PAPER.logs, ids=lambda log: f"{log.version}-{log.stream}")
def test_logs_agree_with_themselves(log: Log) -> None:
    assert statistics.fmean(log.curve) == pytest.approx(log.A_bar, abs=0.006)
    for a_b, after in zip(log.curve, log.after, strict=True):
        assert after.get("transport", after["retrain"]) == pytest.approx(a_b, abs=0.011)
    if log.matrix is None:
        return
    order = PAPER.orders[log.stream][log.order - 1]
    for a_b, row in zip(log.curve, log.matrix, strict=True):
        sizes = [TEST_IMAGES[name] for name in order[: len(row)]]
        mean = sum(a * n for a, n in zip(row, sizes, strict=True)) / sum(sizes)
        assert mean == pytest.approx(a_b, abs=0.012)
    old = range(len(order) - 1)
    lost = [max(row[j] for row in log.matrix if len(row) > j) - log.matrix[-1][j] for j in old]
    assert statistics.fmean(lost) == pytest.approx(log.forgetting, abs=0.006)


@pytest.mark.parametrize("log", [x for x in PAPER.logs if x.version == "2024"], ids=lambda log: str(log.stream))
def test_logs_of_2024_are_the_papers_first_order(log: Log) -> None:
    average = PAPER.find(f"order-{log.order}", "duct", log.stream, "A_bar")
    last = PAPER.find(f"order-{log.order}", "duct", log.stream, "A_B")
    assert average is not None
    assert last is not None
    assert average.value == pytest.approx(log.A_bar, abs=0.006)
    assert last.value == log.curve[-1]


def test_order_numbers() -> None:
    assert PAPER.order_number("office-home", ("Product", "Clipart", "Real_World", "Art")) == 3
    assert PAPER.order_number("office-home", ("Product", "Art", "Real_World", "Clipart")) is None
    assert PAPER.order_number("demo", ("a",)) is None
