"""The page: valid, self-contained, escaped, complete, deterministic, quick and light."""

from __future__ import annotations

import re
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ductwork import report
from ductwork.errors import CheckpointError, DuctworkError
from tests.report.runs import METHODS, write_many, write_run

_VOID = {"meta", "br", "link", "img", "hr", "input"}


class Page(HTMLParser):
    """Checks that tags balance and ids are unique, and keeps what the tests ask about."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.refs: list[str] = []
        self.urls: list[str] = []
        self.values: list[float] = []
        self.labels: list[str] = []
        self.tags: set[str] = set()
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in _VOID:
            self.open.append(tag)
        self._attributes(attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self._attributes(attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def _attributes(self, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), "an attribute is given twice"
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            elif name in ("href", "src", "xlink:href"):
                (self.refs if (value or "").startswith("#") else self.urls).append(value or "")
            elif name == "data-value":
                self.values.append(float(value or "nan"))
            elif name == "aria-label":
                self.labels.append(value or "")


def build(root: Path, *folders: Path) -> tuple[Page, str]:
    html = report.build(list(folders) or [root], root.parent / f"{root.name}.html").read_text(encoding="utf-8")
    page = Page(html)
    assert len(set(page.ids)) == len(page.ids)
    assert {ref[1:] for ref in page.refs} | set(re.findall(r"url\(#([^)]+)\)", html)) <= set(page.ids)
    return page, html


@pytest.fixture
def three(tmp_path: Path) -> Path:
    for method in ("duct", "finetune", "simplecil"):
        write_run(tmp_path / "runs" / method, method)
    return tmp_path / "runs"


def test_page_is_valid_and_loads_nothing(three: Path) -> None:
    page, html = build(three)
    assert html.startswith("<!DOCTYPE html>\n")
    assert page.urls == []
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", html)
    assert not {"script", "img", "iframe", "link", "object"} & page.tags
    labelled = re.findall(r'<svg role="img" aria-label="[^"]{5,}"', html)
    assert html.count("<svg ") == len(labelled) > 10


def test_every_section_of_three_methods_is_there(three: Path) -> None:
    page, html = build(three)
    for words in (
        "Accuracy as domains come in",
        "What was forgotten",
        "What is known after each domain",
        "What each phase contributed",
        "Where the time goes",
        "What accuracy costs",
        "Configuration and origin",
        "Transport plans",
        "Training loss",
    ):
        assert words in page.text
    assert "prefers-color-scheme:dark" in html
    assert "@media print" in html


def test_numbers_are_those_of_the_records(tmp_path: Path) -> None:
    results = [write_run(tmp_path / "runs" / method, method) for method in ("duct", "finetune")]
    page, _ = build(tmp_path / "runs")
    for result in results:
        for name in ("A_B", "A_bar", "forgetting", "forgetting_chaudhry", "bwt", "seconds"):
            assert result[name] in page.values
        assert result["price"]["parameters"] in page.values
        assert f"{result['A_B']:.2f}" in page.text
        assert any(f"{result['method']}: {result['A_B']:.1f} %" in label for label in page.labels)
        assert result["backbone"]["sha256"] in page.text
        assert result["data"]["fingerprint"] in page.text


def test_mean_and_population_deviation_over_orders(tmp_path: Path) -> None:
    orders = (("a", "b", "c"), ("b", "c", "a"), ("c", "a", "b"))
    values = [write_run(tmp_path / "r" / str(i), "duct", order, seed=i)["A_B"] for i, order in enumerate(orders)]
    page, _ = build(tmp_path / "r")
    mean = sum(values) / 3
    std = (sum((v - mean) ** 2 for v in values) / 3) ** 0.5
    assert f"{mean:.2f} ± {std:.2f}" in page.text
    assert "not mixed in" in page.text


def test_hostile_names_are_escaped(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>&\"'$x^2$"
    domains = [evil, "a]]>-->b", "tab\tnew\nline\x00\x1b", "日本語 домен"]
    for method in ("duct", "<b>&method"):
        write_run(
            tmp_path / "runs" / str(len(method)),
            method,
            domains,
            classes=[evil, "x", '"><svg onload=1>'],
            stream=evil,
            params={evil: evil},
            recipe=evil,
        )
    page, html = build(tmp_path / "runs")
    assert "<script" not in html
    assert not {"script", "b"} & page.tags
    assert "onload=1>" not in html.replace("onload=1&gt;", "")
    assert "\x00" not in html
    assert "\x1b" not in html
    assert "日本語" in html
    assert "<script>alert(1)</script>" in page.text


def test_running_failed_and_not_applicable_runs_are_shown(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a", "duct")
    write_run(tmp_path / "runs" / "b", "finetune", status="running", stages=2)
    write_run(tmp_path / "runs" / "c", "replay", status="failed", stages=1)
    write_run(tmp_path / "runs" / "d", "l2p", status="not-applicable", stages=0, reason="needs tokens")
    page, _ = build(tmp_path / "runs")
    assert "running, 2 of 4 domains" in page.text
    assert "failed, 1 of 4 domains" in page.text
    assert "the loss is not finite at stage 2, epoch 3" in page.text
    assert "needs tokens" in page.text
    assert "NA" in page.text
    assert "3 runs are not finished" in page.text


@pytest.mark.parametrize(
    "case",
    ["one run", "one stage", "no stage", "own tests", "bare", "not finite", "two streams", "many domains", "settings"],
)
def test_degrades_gracefully(tmp_path: Path, case: str) -> None:
    runs = tmp_path / "runs"
    if case == "one stage":
        write_run(runs / "a", "duct", ["only"])
        write_run(runs / "b", "finetune", ["only"])
    elif case == "no stage":
        write_run(runs / "a", "duct", status="running", stages=0)
    elif case == "own tests":
        write_run(runs / "a", "duct", ["s1", "s2", "s4"], own_tests=("s3", "s7"))
    elif case == "bare":
        stage = '{"domain": "a", "accuracy": {"a": 50}, "A_b": 50, "n_test": {"a": 10}}'
        _raw(runs, f'"stages": [{stage}], "status": "done"')
    elif case == "not finite":
        stage = (
            '{"domain": "a", "accuracy": {"a": NaN}, "A_b": NaN, "n_test": {"a": 10}, '
            '"after": {"x": NaN, "y": 1}, "seconds": {"x": Infinity}, "similarity": NaN}'
        )
        _raw(runs, f'"stages": [{stage}, {stage}], "status": "done", "A_B": NaN, "bwt": -Infinity, "seconds": NaN')
    elif case == "two streams":
        write_run(runs / "a", "duct")
        write_run(runs / "b", "duct", stream="other", data={"fingerprint": "x"})
    elif case == "many domains":
        write_run(runs / "a", "duct", [f"d{i}" for i in range(70)], plans=False)
    elif case == "settings":
        for i in range(20):
            write_run(runs / str(i), "duct", params={"alpha": i / 20})
    if case == "one run":
        write_run(runs / "a", "duct", peculiar={"later": "field"})
    page, html = build(runs)
    assert "Configuration and origin" in page.text
    assert "nan" not in re.sub(r"[a-z]nan|nan[a-z]", "", html)
    if case == "one run":
        assert "peculiar" in page.text
    if case == "settings":
        assert "alpha=0.35" in page.text
        assert "7 more are in the table" in page.text


def _raw(folder: Path, rest: str) -> None:
    folder.mkdir()
    (folder / "result.json").write_text(
        '{"method": "m", "stream": "s", "order": ["a"], "seed": 1, "backbone": {"name": "n", "sha256": "0"}, '
        '"data": {"fingerprint": "f"}, ' + rest + "}",
        encoding="utf-8",
    )


def test_same_runs_give_the_same_bytes(three: Path, tmp_path: Path) -> None:
    first = report.build([three], tmp_path / "1.html").read_bytes()
    assert report.build([three / "simplecil", three], tmp_path / "2.html").read_bytes() == first


def test_five_hundred_runs_are_quick_and_light(tmp_path: Path) -> None:
    write_many(tmp_path / "runs", 500)
    # Processor time: how busy the machine is otherwise is not this test's matter.
    start = time.process_time()
    out = report.build([tmp_path / "runs"], tmp_path / "many.html")
    assert time.process_time() - start < 10
    assert out.stat().st_size < 10e6
    page = Page(out.read_text(encoding="utf-8"))
    assert all(method in page.text for method in METHODS)
    assert "500 runs" in page.text


def test_a_failed_write_leaves_the_old_page(three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "deep" / "report.html"
    report.build([three], out)
    before = out.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(DuctworkError, match=r"report\.html cannot be written: No space left"):
        report.build([three], out)
    assert out.read_bytes() == before
    assert [path.name for path in out.parent.iterdir()] == ["report.html"]


def test_a_folder_as_output_is_an_error(three: Path, tmp_path: Path) -> None:
    with pytest.raises(DuctworkError, match="it is a folder"):
        report.build([three], tmp_path)


def test_a_damaged_result_is_named_and_the_others_are_reported(three: Path) -> None:
    (three / "broken").mkdir()
    (three / "broken" / "result.json").write_text('{"method": "du', encoding="utf-8")
    page, _ = build(three)
    assert f"{three}/broken/result.json is not a result" in page.text
    assert "3 runs" in page.text
    with pytest.raises(CheckpointError, match=r"broken/result\.json is not a result") as caught:
        report.collect([three / "broken"])
    assert "\n" not in str(caught.value)


def test_nothing_to_report_on_is_an_error(tmp_path: Path, three: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="empty holds no run"):
        report.collect([three, tmp_path / "empty"])
    with pytest.raises(DuctworkError, match="nowhere does not exist"):
        report.collect([tmp_path / "nowhere"])
    with pytest.raises(DuctworkError, match="no folder"):
        report.collect([])
    assert not (tmp_path / "report.html").exists()
