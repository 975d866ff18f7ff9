"""t-SNE of the space before and after: the same picture every time, and the regions are what the classifier says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ductwork import report
from ductwork.experiments.results import EMBEDDING_FILE, Embedding
from ductwork.report.space import Map, _said_at, draw, flatten
from tests.report.runs import write_run


@pytest.fixture(scope="module")
def embedding() -> Embedding:
    """Three classes that lie apart in three domains; after the run two of them are taken for each other."""
    dice = np.random.default_rng(0)
    labels, domain_of = np.tile(np.repeat(np.arange(3), 12), 3), np.repeat(np.arange(3), 36)
    features = (8 * np.eye(3, 16)[labels] + dice.normal(size=(108, 16))).astype(np.float32)
    return Embedding(
        ("ant", "bee", "cat"),
        ("day", "dusk", "night"),
        labels,
        domain_of,
        features,
        features[:, ::-1].copy(),
        labels.copy(),
        np.where(labels == 1, 0, labels),
    )


def test_clusters_stay_clusters_and_regions_are_what_is_said(embedding: Embedding) -> None:
    one = flatten(embedding.before, embedding, embedding.said_before)
    assert one.places.shape == (108, 2) and 0 <= one.places.min() <= one.places.max() <= 1
    apart = ((one.places[:, None] - one.places[None]) ** 2).sum(-1) + 9 * np.eye(108)
    assert (one.labels[apart.argmin(1)] == one.labels).mean() > 0.95
    cells = _said_at(one)
    here = (one.places * len(cells)).astype(int)
    assert (cells[here[:, 1], here[:, 0]] == one.said).mean() > 0.95
    after = flatten(embedding.after, embedding, embedding.said_after)
    assert set(np.unique(_said_at(after))) == {0, 2}
    assert (one.right, round(after.right)) == (100.0, 67)
    np.testing.assert_array_equal(one.places, flatten(embedding.before, embedding, embedding.said_before).places)


def test_points_that_are_all_the_same_are_drawn(embedding: Embedding) -> None:
    same = np.ones((6, 4), np.float32)
    few = Embedding(
        ("a", "b"), ("d",), np.arange(6) % 2, np.zeros(6, np.int64), same, same, *[np.zeros(6, np.int64)] * 2
    )
    one = flatten(same, few, few.said_before)
    assert isinstance(one, Map) and np.isfinite(one.places).all()
    draw(one, "Before", "50 % right")


def test_a_run_with_features_gets_two_maps_of_its_first_and_last_domain(embedding: Embedding, tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a", "duct", ["night", "dusk", "day"])
    (tmp_path / "runs" / "a" / EMBEDDING_FILE).write_bytes(embedding.to_bytes())
    html = report.build([tmp_path / "runs"], tmp_path / "a.html").read_text(encoding="utf-8")
    assert "The space before and after" in html
    assert "Circles night and triangles day" in html
    assert "72 test images of 3 classes and of night and day; 67 % right" in html
    assert html == report.build([tmp_path / "runs"], tmp_path / "b.html").read_text(encoding="utf-8")


def test_a_damaged_file_costs_the_maps_only(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a", "duct")
    (tmp_path / "runs" / "a" / EMBEDDING_FILE).write_bytes(b"\0" * 64)
    html = report.build([tmp_path / "runs"], tmp_path / "a.html").read_text(encoding="utf-8")
    assert "The space before and after" not in html and "What was forgotten" in html
