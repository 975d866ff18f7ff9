"""What every registered method promises. A new method is tested here without a line being added."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ductwork.backbones.base import Backbone
from ductwork.data.domain import Domain, Stream
from ductwork.engine.checkpoint import State, Vault
from ductwork.engine.learner import Learner
from ductwork.engine.settings import EngineSettings
from ductwork.methods.registry import methods
from tests.conftest import CLASSES, domain, tiny_backbone

NAMES = sorted(methods())
DETERMINISTIC = {"simplecil"}
"""Methods that draw nothing, so that another seed changes nothing."""


def learner(name: str, *, backbone: Backbone | str | None = None, seed: int = 7, **params: Any) -> Learner:
    fields = methods()[name].Config.model_fields
    quick = {"epochs": 2, "batch_size": 16, "retrain_epochs": 2, "retrain_views": 2, "projection": 200}
    settings = EngineSettings(precision="fp32", workers=0, eval_batch_size=64)
    values = {key: value for key, value in {**quick, **params}.items() if key in fields}
    return Learner(name, backbone=backbone or tiny_backbone(), params=values, seed=seed, settings=settings)


def tensors(state: State) -> dict[str, Tensor]:
    return {f"{part}/{key}": value for part, group in state.parts.items() for key, value in group.items()}


def assert_same_bits(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for key in a:
        assert torch.equal(a[key].cpu(), b[key].cpu()), key


@pytest.mark.parametrize("name", NAMES)
def test_learns(name: str, stream: Stream) -> None:
    pupil = learner(name, backbone="glyph_vit", epochs=10, lr_head=0.05)
    for one in stream:
        pupil.learn(one)
        chance = 100 / len(CLASSES)
        assert pupil.evaluate(one).A_b > chance + 20, f"{one.name} was not learned"
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


@pytest.mark.parametrize("name", NAMES)
def test_missing_and_new_classes(name: str) -> None:
    pupil = learner(name)
    pupil.learn(domain("day", ["east", "north"]))
    pupil.learn(domain("night", ["frame", "north", "west"]))
    assert pupil.method.rows.classes == ("east", "frame", "north", "west")
    found = pupil.evaluate({"day": domain("day").test})
    assert 0 <= found.A_b <= 75, "south was never learned, so a quarter of the images cannot be right"
    assert {p.label for p in pupil.predict(domain("night").test)} <= set(pupil.method.rows.classes)


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


@pytest.mark.parametrize("name", NAMES)
def test_predictions_do_not_depend_on_the_batch(name: str, stream: Stream) -> None:
    pupil = learner(name)
    pupil.learn(stream[0])
    pupil.learn(stream[1])
    inputs = torch.randn(12, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    pupil.method.eval()
    with torch.no_grad():
        whole = pupil.method(inputs)
        parts = torch.cat([pupil.method(inputs[:1]), pupil.method(inputs[1:5]), pupil.method(inputs[5:])])
        turned = pupil.method(inputs.flip(0)).flip(0)
    torch.testing.assert_close(whole, parts, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(whole, turned, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_learning_again_does_not_touch_the_domain_nor_the_images(name: str, stream: Stream) -> None:
    before = [one.train.fingerprint for one in stream]
    pupil = learner(name)
    for one in stream:
        pupil.learn(one)
    assert before == [one.train.fingerprint for one in stream]


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
