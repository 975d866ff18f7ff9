"""The memory: what is chosen, how it is kept, and what comes back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ductwork import functional as F
from ductwork.data.domain import ArraySource, Domain, ImageSet, Stream
from ductwork.data.transforms import test_transform as plain_view
from ductwork.engine.bench import Bench
from ductwork.engine.learner import Learner
from ductwork.engine.settings import EngineSettings
from ductwork.errors import CheckpointError, DataError
from ductwork.methods.exemplars import Exemplars, RehearsalMethod
from tests.conftest import CLASSES, domain, tiny_backbone


def pupil(method: str = "replay", **params: Any) -> Learner:
    values = {"epochs": 1, "batch_size": 16, **params}
    settings = EngineSettings(precision="fp32", workers=0, accelerator="cpu")
    return Learner(method, backbone=tiny_backbone(), params=values, seed=7, settings=settings)


def memory(learner: Learner) -> Exemplars:
    assert isinstance(learner.method, RehearsalMethod)
    return learner.method.memory


def per_row(kept: Exemplars) -> dict[int, list[str]]:
    pairs = list(zip(kept.rows, kept.references, strict=True))
    return {row: [ref.name for at, ref in pairs if at == row] for row in sorted(set(kept.rows))}


@pytest.mark.parametrize("method", ["replay", "icarl", "memo"])
def test_ten_of_each_class_and_domain(method: str) -> None:
    learner = pupil(method)
    for number, name in enumerate(("day", "dusk"), start=1):
        one = domain(name, train=12)
        learner.learn(one)
        kept = per_row(memory(learner))
        assert len(memory(learner)) == 10 * len(CLASSES) * number == learner.reports[-1].records["exemplars"]
        assert all(len(names) == len(set(names)) == 10 for names in kept.values()), "none is repeated"
        for row, names in list(kept.items())[-4:]:
            assert {r.label for r in memory(learner).references if r.name in names} == {CLASSES[row % 4]}


def test_the_trained_model_chooses_and_a_smaller_memory_is_a_beginning_of_a_larger() -> None:
    one = domain("day", train=9)
    kept = {}
    for m in (3, 6):
        learner = pupil(exemplars=m)
        learner.learn(one)
        kept[m] = per_row(memory(learner))
        view = plain_view(learner.transform)
        inputs = view.batch(torch.stack([one.train.read(i) for i in range(len(one.train))]), np.zeros(36, np.uint64))
        with torch.no_grad():
            features = learner.method.backbone(inputs)
        for row in range(4):
            members = np.flatnonzero(one.targets == row)
            best = members[F.herd(features[torch.from_numpy(members)], m).numpy()]
            assert kept[m][row] == [one.train.name(i) for i in best]
    assert all(kept[6][row][:3] == kept[3][row] for row in range(4))


def test_a_short_class_is_kept_whole_and_filled_up_by_the_seed() -> None:
    everything = domain("day", train=12)
    some = everything.train.subset([i for i in range(48) if i < 12 or i % 12 < 4])
    one = replace(everything, train=some)
    kept = []
    for seed in (7, 7, 8):
        learner = pupil()
        learner.seed = seed
        learner.learn(one)
        assert len(memory(learner)) == 40
        names = per_row(memory(learner))
        assert len(set(names[0])) == 10
        for row in (1, 2, 3):
            assert len(names[row]) == 10
            assert len(set(names[row][:4])) == len(set(names[row])) == 4
        kept.append(names)
    assert kept[0] == kept[1]
    assert any(kept[0][row][4:] != kept[2][row][4:] for row in (1, 2, 3))


def test_what_is_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[ImageSet, Any]] = []
    original = Bench.augmented

    def spy(self: Bench, batch_size: int, **options: Any) -> Any:
        seen.append((options["images"], options["targets"]))
        return original(self, batch_size, **options)

    monkeypatch.setattr(Bench, "augmented", spy)
    learner = pupil(exemplars=2)
    first, second = domain("day", ["east", "north"]), domain("night", ["frame", "north", "west"])
    learner.learn(first)
    learner.learn(second)
    (images, targets), (mixed, rows) = seen
    assert images is first.train
    assert targets.tolist() == first.targets.tolist()
    assert len(mixed) == len(second.train) + 2 * 2
    assert rows.tolist() == [*(second.targets + 2).tolist(), 0, 0, 1, 1], "rows of (domain, class) pairs"
    names = [block.domain + " " + name for block in learner.method.rows.blocks for name in block.classes]
    for i, row in enumerate(rows):
        origin, label = names[row].split()
        assert mixed.label_name(i) == label
        assert mixed.name(i).startswith(origin)
        source = first.train if origin == "day" else second.train
        at = [source.name(k) for k in range(len(source))].index(mixed.name(i))
        assert torch.equal(mixed.read(i), source.read(at))


def test_kept_as_json_without_pixels(stream: Stream, tmp_path: Path) -> None:
    learner = pupil(exemplars=2)
    learner.learn(stream[0])
    data = json.loads(json.dumps(memory(learner).to_json()))
    assert len(data) == 8
    assert sorted(data[0]) == ["checksum", "domain", "label", "name", "row"]
    again = Exemplars.from_json(data)
    assert (again.references, again.rows) == (memory(learner).references, memory(learner).rows)
    learner.save(tmp_path / "model")
    loaded = Learner.load(tmp_path / "model", settings=learner.session.settings)
    assert memory(loaded).references == memory(learner).references
    with pytest.raises(CheckpointError, match=r"exemplar.*'row'"):
        Exemplars.from_json([{"domain": "a", "name": "b", "label": "c", "checksum": "d"}])


def test_an_image_that_changed_or_is_gone_is_named(stream: Stream) -> None:
    learner = pupil(exemplars=1)
    learner.learn(stream[0])
    train = stream[0].train
    assert isinstance(train.source, ArraySource)
    darker = replace(train, source=ArraySource(train.source.images // 2, train.source.names))
    learner.library["day"] = darker
    with pytest.raises(DataError, match=r"day/1/\d+.*'day' has changed"):
        learner.learn(stream[1])
    learner = pupil(exemplars=1)
    learner.learn(stream[0])
    learner.library.clear()
    with pytest.raises(DataError, match="'day', which is not at hand"):
        learner.learn(stream[1])


def test_means_are_directions_of_the_exemplars_of_a_row() -> None:
    features = torch.tensor([[2.0, 0.0], [0.0, 5.0], [0.0, -3.0], [1.0, 0.0]])
    means = Exemplars(rows=[0, 0, 1, 2]).means(features, 3)
    half = 0.5**0.5
    torch.testing.assert_close(means, torch.tensor([[half, half], [0.0, -1.0], [1.0, 0.0]]))


def test_two_domains_with_one_class(stream: Stream) -> None:
    learner = pupil(exemplars=3)
    for name in ("day", "night"):
        whole = domain(name)
        learner.learn(Domain(name, whole.train.subset(range(8)), whole.test))
    assert memory(learner).rows == [0, 0, 0, 1, 1, 1]
    assert learner.method.rows.classes == ("east",)
