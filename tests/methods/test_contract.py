"""What every registered method promises. A new method is tested here without a line being added."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ductwork.backbones.base import Backbone
from ductwork.backbones.weights import digest
from ductwork.data.domain import Domain, ImageSet, Stream
from ductwork.data.incremental import by_classes
from ductwork.data.streams import available
from ductwork.engine.checkpoint import State, Vault
from ductwork.engine.learner import Learner
from ductwork.engine.settings import EngineSettings
from ductwork.errors import BackboneError
from ductwork.methods.registry import configure, methods
from tests.conftest import CLASSES, domain, tiny_backbone

NAMES = sorted(methods())
RECIPES = [(name, recipe) for name in NAMES for recipe in methods()[name].recipes]
DETERMINISTIC = {"simplecil"}
"""Methods that draw nothing, so that another seed changes nothing."""
NEED_TOKENS = {"coda-prompt", "dualprompt", "ease", "l2p", "memo", "s-iprompt"}
"""Methods that put something between the blocks of a Vision Transformer, or split it there."""


def learner(
    name: str, recipe: str = "default", *, backbone: Backbone | str | None = None, seed: int = 7, **params: Any
) -> Learner:
    fields = methods()[name].Config.model_fields
    quick = {"epochs": 2, "batch_size": 16, "retrain_epochs": 2, "retrain_views": 2, "projection": 200}
    settings = EngineSettings(precision="fp32", workers=0, eval_batch_size=64)
    values = {key: value for key, value in {**quick, **params}.items() if key in fields}
    backbone = backbone or tiny_backbone()
    return Learner(name, recipe=recipe, backbone=backbone, params=values, seed=seed, settings=settings)


def tensors(state: State) -> dict[str, Tensor]:
    return {f"{part}/{key}": value for part, group in state.parts.items() for key, value in group.items()}


def assert_same_bits(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for key in a:
        assert torch.equal(a[key].cpu(), b[key].cpu()), key


@pytest.mark.parametrize(("name", "recipe"), RECIPES)
def test_recipes_hold_valid_values_for_streams_that_exist(name: str, recipe: str) -> None:
    kind = methods()[name]
    assert set(kind.recipes[recipe].streams) <= set(available())
    for stream in ("", *kind.recipes[recipe].streams):
        assert isinstance(configure(kind, recipe, stream), kind.Config)


@pytest.mark.parametrize("name", NAMES)
def test_learns(name: str) -> None:
    optimizer = methods()[name].Config.model_fields.get("optimizer")
    adam = optimizer is not None and optimizer.default == "adam"
    rates: dict[str, Any] = {"lr_head": 0.01, "lr_backbone": 0.01} if adam else {"lr_head": 0.05}
    pupil = learner(name, backbone="glyph_vit", epochs=10, **rates)
    chance = 100 / len(CLASSES)
    for number, day in enumerate(("day", "dusk")):
        one = domain(day, train=12, test=25, seed=10 * number)
        pupil.learn(one)
        found = pupil.evaluate(one).A_b
        assert found > chance + 12, f"{day} was not learned: {found} %"
    assert pupil.method.rows.classes == CLASSES


@pytest.mark.parametrize("name", NAMES)
def test_save_and_load_is_the_same_learner(name: str, stream: Stream, tmp_path: Path) -> None:
    first = learner(name)
    first.learn(stream[0])
    first.save(tmp_path / "model")
    second = Learner.load(tmp_path / "model", settings=first.session.settings)
    second.library.update(first.library)  # methods that rehearse need their old images back
    assert_same_bits(tensors(first.state()), tensors(second.state()))
    assert first.predict(stream[0].test) == second.predict(stream[0].test)
    first.learn(stream[1])
    second.learn(stream[1])
    assert_same_bits(tensors(first.state()), tensors(second.state()))


def share_right(pupil: Learner, images: ImageSet) -> float:
    """Accuracy by names: what a user would count."""
    found = [prediction.label for prediction in pupil.predict(images)]
    return 100.0 * float(np.mean([found[i] == images.label_name(i) for i in range(len(images))]))


@pytest.mark.parametrize("name", NAMES)
def test_classes_may_be_missing_or_new_or_come_back(name: str) -> None:
    pupil = learner(name)
    for day, classes in (
        ("day", ["east", "north"]),
        ("night", ["frame", "north", "west"]),
        ("dusk", ["east", "south"]),
    ):
        pupil.learn(domain(day, classes))
    assert pupil.method.rows.classes == ("east", "frame", "north", "south", "west")
    tests = {day: domain(day, [*CLASSES, "frame"]).test for day in ("day", "night")}
    accuracy = pupil.evaluate(tests).accuracy
    assert accuracy == {day: pytest.approx(share_right(pupil, images)) for day, images in tests.items()}


@pytest.mark.parametrize("name", NAMES)
def test_classes_may_come_a_few_at_a_time(name: str, stream: Stream) -> None:
    """Class-incremental: each class has one row, and only its own name counts as right, in whichever stage it came."""
    pupil = learner(name)
    for number, stage in enumerate(by_classes(stream, 2), start=1):
        pupil.learn(stage)
        assert pupil.method.rows.classes == CLASSES[: 2 * number]
        assert len(pupil.method.rows) == 2 * number
    everything = ImageSet.concat([one.test for one in stream])
    assert pupil.evaluate(everything).A_b == pytest.approx(share_right(pupil, everything))


@pytest.mark.parametrize("name", NAMES)
def test_seed_decides_every_bit(name: str, stream: Stream) -> None:
    states = []
    for seed in (7, 7, 8):
        pupil = learner(name, seed=seed)
        pupil.learn(stream[0])
        pupil.learn(stream[1])
        states.append(tensors(pupil.state()))
    assert_same_bits(states[0], states[1])
    same = all(torch.equal(states[0][key], states[2][key]) for key in states[0])
    assert same == (name in DETERMINISTIC)


@pytest.mark.parametrize(("name", "recipe"), RECIPES)
def test_predictions_do_not_depend_on_the_batch(name: str, recipe: str) -> None:
    pupil = learner(name, recipe, epochs=1, retrain_epochs=1)
    for one in ("day", "dusk"):
        pupil.learn(domain(one, train=4))
    inputs = torch.randn(12, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    pupil.method.eval()
    with torch.no_grad():
        whole = pupil.method(inputs)
        parts = torch.cat([pupil.method(inputs[:1]), pupil.method(inputs[1:5]), pupil.method(inputs[5:])])
        turned = pupil.method(inputs.flip(0)).flip(0)
    same = all(torch.allclose(whole, other, rtol=1e-4, atol=1e-4) for other in (parts, turned))
    assert same or "depend on" in pupil.method.recipes[recipe].summary, "a recipe has to say so"


@pytest.mark.parametrize("name", NAMES)
def test_what_must_not_change_keeps_its_bits(name: str, stream: Stream) -> None:
    pupil = learner(name)
    images, pretrained = [one.train.fingerprint for one in stream], pupil.method.backbone.sha256
    constant: dict[str, Tensor] = {}
    for one in stream:
        pupil.learn(one)
        found = {k: v for k, v in tensors(pupil.state()).items() if k.split("/")[0] in pupil.method.constant_parts}
        assert_same_bits(constant, {key: found[key] for key in constant})
        constant = {key: value.clone() for key, value in found.items()}
    if "backbone" in pupil.method.constant_parts:
        assert digest(pupil.method.backbone.model.state_dict()) == pretrained
        assert not any(p.requires_grad for p in pupil.method.backbone.parameters())
    assert [one.train.fingerprint for one in stream] == images


@pytest.mark.parametrize("name", NAMES)
def test_a_backbone_without_tokens_is_learned_with_or_refused(name: str, stream: Stream) -> None:
    """Refused before anything is trained, by the names of the method and the backbone, and with a reason."""
    backbone = tiny_backbone("test_resnet")
    if name in NEED_TOKENS:
        with pytest.raises(BackboneError, match=rf"'{name}' needs .*'{backbone.name}' cannot be used: .+; use "):
            learner(name, backbone=backbone)
        return
    pupil = learner(name, backbone=backbone)
    pupil.learn(stream[0])
    assert pupil.evaluate(stream[0]).n_test == {"day": 20}


class _KilledError(Exception):
    pass


class _FailingVault(Vault):
    """Stands for a process that dies right after its n-th checkpoint reached the disk."""

    left = 0

    def write(self, state: State, **options: Any) -> int:
        written = super().write(state, **options)
        _FailingVault.left -= 1
        if _FailingVault.left == 0:
            raise _KilledError
        return written


def learn_all(pupil: Learner, domains: tuple[Domain, ...], folder: Path) -> Learner:
    pupil.keep_in(folder)
    pupil.library = {one.name: one.train for one in domains}
    for number, one in enumerate(domains, start=1):
        if number > len(pupil.reports):
            pupil.learn(one, tests={d.name: d.test for d in domains[:number]})
    return pupil


def stable(pupil: Learner) -> list[dict[str, Any]]:
    """What of the reports must not depend on interruptions: all but times and bytes written."""
    work = ("frozen", "train", "test", "decoded")
    return [{**vars(r), "seconds": sorted(r.seconds), "work": {k: r.work[k] for k in work}} for r in pupil.reports]


@pytest.mark.parametrize("name", NAMES)
def test_interrupted_at_every_checkpoint_ends_with_the_same_bits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    domains = (domain("day", train=3, test=2), domain("night", train=3, test=2))
    learn_all(learner(name), domains[:1], tmp_path / "begun")
    shutil.copytree(tmp_path / "begun", tmp_path / "unbroken")
    unbroken = learn_all(learner(name), domains, tmp_path / "unbroken")
    monkeypatch.setattr("ductwork.engine.learner.Vault", _FailingVault)
    for moment in range(1, 100):
        folder = tmp_path / f"killed-{moment}"
        shutil.copytree(tmp_path / "begun", folder)
        _FailingVault.left = moment
        try:
            learn_all(learner(name), domains, folder)
            break  # there is no checkpoint after this many
        except _KilledError:
            resumed = learn_all(learner(name), domains, folder)
        assert_same_bits(tensors(unbroken.state()), tensors(resumed.state()))
        assert stable(unbroken) == stable(resumed)
        shutil.rmtree(folder)
    assert moment > 1
