"""The learner as a library's user meets it: learn, evaluate, predict, save, load."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import ductwork as dw
from ductwork.data.domain import Stream
from ductwork.errors import CheckpointError, ConfigError
from tests.conftest import CLASSES, domain, tiny_backbone

SETTINGS = dw.EngineSettings(precision="fp32", workers=0, accelerator="cpu")
QUICK = {"epochs": 1, "retrain_epochs": 1, "retrain_views": 1, "batch_size": 16}


def learner(**options: object) -> dw.Learner:
    values = {"params": QUICK, "backbone": tiny_backbone(), "settings": SETTINGS, **options}
    return dw.Learner(str(values.pop("method", "duct")), **values)  # type: ignore[arg-type]


def photos(root: Path) -> Path:
    """The compass stream as files in folders."""
    for name in ("day", "night"):
        one = domain(name)
        for part, images in (("train", one.train), ("test", one.test)):
            for i in range(len(images)):
                path = root / name / part / images.label_name(i) / f"{i}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(images.read(i).permute(1, 2, 0).numpy()).save(path)
    return root


def test_the_readme(tmp_path: Path) -> None:
    stream = dw.streams.folders(photos(tmp_path / "photos"), order=["night", "day"])
    pupil = dw.Learner("duct", backbone="glyph_vit", params={**QUICK, "epochs": 4}, settings=SETTINGS)
    for one in stream:
        pupil.learn(one)
        found = pupil.evaluate(stream.seen(one))
        assert set(found.accuracy) == set(stream.seen(one))
        assert str(round(found.A_b, 2)) in f"{found}"
    pupil.save(tmp_path / "model")
    image = tmp_path / "photos/day/test/north" / sorted((tmp_path / "photos/day/test/north").iterdir())[0].name
    here, there = pupil.predict(image), dw.load(tmp_path / "model", settings=SETTINGS).predict(str(image))
    assert here == there
    assert here.label in CLASSES and here.domain in ("night", "day")
    assert here.probability == max(here.scores.values())
    assert sum(here.scores.values()) == pytest.approx(1.0)


def test_predictions_come_in_the_order_of_the_images(stream: Stream) -> None:
    pupil = learner()
    pupil.learn(stream[0])
    images = stream[0].test
    whole = pupil.predict(images)
    turned = pupil.predict(images.subset(np.arange(len(images))[::-1]))
    assert [p.label for p in whole] == [p.label for p in turned[::-1]]


def test_accuracy_counts_images_not_domains(stream: Stream) -> None:
    pupil = learner()
    pupil.learn(stream[0])
    few, many = stream[0].test.subset(range(4)), stream[1].test
    found = pupil.evaluate({"few": few, "many": many})
    weights = {"few": len(few), "many": len(many)}
    expected = sum(found.accuracy[name] * n for name, n in weights.items()) / sum(weights.values())
    assert found.A_b == pytest.approx(expected)
    assert found.n_test == weights


def test_an_unknown_class_is_always_wrong(stream: Stream) -> None:
    pupil = learner()
    pupil.learn(domain("day", ["east", "north"]))
    assert pupil.evaluate(domain("night", ["south", "west"])).A_b == 0.0


def test_nothing_learned_yet() -> None:
    with pytest.raises(ConfigError, match="learned nothing yet"):
        learner().predict("cat.jpg")
    with pytest.raises(ConfigError, match="learned nothing yet"):
        learner().evaluate(domain("day"))


def test_a_folder_without_a_state(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no learned state"):
        dw.load(tmp_path)


@pytest.mark.parametrize("change", [{"method": "simplecil", "params": {}}, {"seed": 4}, {"params": {"epochs": 2}}])
def test_a_checkpoint_of_another_configuration(change: dict[str, object], stream: Stream, tmp_path: Path) -> None:
    pupil = learner()
    pupil.keep_in(tmp_path)
    pupil.learn(stream[0])
    with pytest.raises(CheckpointError, match="the checkpoint was made with"):
        learner(**change).keep_in(tmp_path)


def test_a_checkpoint_of_another_backbone(stream: Stream, tmp_path: Path) -> None:
    pupil = learner()
    pupil.keep_in(tmp_path)
    with pytest.raises(CheckpointError, match="another backbone"):
        learner(backbone=tiny_backbone(seed=1)).keep_in(tmp_path)


def test_forward_transfer_is_measured_before_learning(stream: Stream) -> None:
    pupil = learner()
    report = pupil.learn(stream[0], tests=stream.seen(stream[0]), ahead={stream[1].name: stream[1].test})
    assert report.records["ahead"] == {stream[1].name: pupil.evaluate(stream[1]).A_b}


def test_learning_leaves_no_graph_behind(stream: Stream) -> None:
    pupil = learner()
    pupil.learn(stream[0])
    assert all(parameter.grad is None for parameter in pupil.method.parameters())
    assert not pupil.method.training
    assert torch.is_grad_enabled()
