"""RanPAC: after any stream it is the ridge regression on all of its images."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

from ductwork import functional as F
from ductwork.data.domain import Domain, Stream
from ductwork.data.loading import Loader
from ductwork.data.transforms import test_transform as plain_view
from ductwork.engine.learner import Learner
from ductwork.errors import BackboneError, ConfigError
from ductwork.methods import ranpac
from ductwork.methods.ranpac import RanPAC, RanPACConfig
from ductwork.methods.registry import configure
from tests.conftest import CLASSES, domain, tiny_backbone
from tests.methods.test_contract import assert_same_bits, learner, tensors

M = 48


def taught(domains: Iterable[Domain], **params: Any) -> RanPAC:
    pupil = learner("ranpac", **{"projection": M, **params})
    for one in domains:
        pupil.learn(one)
    return method_of(pupil)


def method_of(pupil: Learner) -> RanPAC:
    assert isinstance(pupil.method, RanPAC)
    return pupil.method


def hidden(method: RanPAC, domains: Iterable[Domain]) -> tuple[Tensor, list[str]]:
    """``H`` in float64 and the class names of all training images."""
    spec = learner("simplecil").transform
    found, names = [], []
    for one in domains:
        for batch in Loader(one.train, plain_view(spec), batch_size=8, targets=one.targets, workers=0).epoch():
            with torch.no_grad():
                found.append(method._hidden(method._network()(batch.inputs)).double())
            names += [one.classes[i] for i in batch.targets.tolist()]
    return torch.cat(found), names


def least_squares(method: RanPAC, domains: Iterable[Domain], ridge: float) -> dict[str, Tensor]:
    """Ridge regression on everything at once, by name: least squares with ``sqrt(lambda) I`` below ``H``."""
    H, names = hidden(method, domains)
    classes = sorted(set(names))
    Y = torch.tensor([[float(name == one) for one in classes] for name in names], dtype=torch.float64)
    H = torch.cat([H, ridge**0.5 * torch.eye(H.shape[1], dtype=torch.float64)])
    W = torch.linalg.lstsq(H, torch.cat([Y, torch.zeros(len(H) - len(Y), len(classes), dtype=torch.float64)])).solution
    return dict(zip(classes, W.T, strict=True))


def by_name(method: RanPAC) -> dict[str, Tensor]:
    """The learned ``w`` of each class, in float64."""
    names = [name for block in method.rows.blocks for name in block.classes]
    return {name: method.weights[:, c].double() for name, c in zip(names, method._columns().tolist(), strict=True)}


def test_equals_ridge_on_all_data_in_any_order(stream: Stream) -> None:
    for order in ((0, 1, 2), (2, 0, 1)):
        domains = [stream[i] for i in order]
        method = taught(domains, ridge=10.0)
        expected = least_squares(method, domains, 10.0)
        for name, w in by_name(method).items():
            torch.testing.assert_close(w, expected[name], rtol=1e-4, atol=1e-6)


def test_the_chosen_ridge_is_the_one_that_is_used(stream: Stream) -> None:
    pupil = learner("ranpac", projection=M)
    for one in stream:
        record = pupil.learn(one).records
    expected = least_squares(method_of(pupil), stream, record["ridge"])
    for name, w in by_name(method_of(pupil)).items():
        torch.testing.assert_close(w, expected[name], rtol=1e-3, atol=1e-4)


def test_new_and_missing_classes_are_ridge_regression_too() -> None:
    domains = [domain("day", ["north", "west"]), domain("dusk", ["frame", "west"], seed=3), domain("night", seed=6)]
    method = taught(domains, ridge=1.0)
    expected = least_squares(method, domains, 1.0)
    found = by_name(method)
    assert sorted(found) == sorted({*CLASSES, "frame"})
    for name in found:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-5)


def test_any_split_into_batches(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = taught(stream[:2])
    monkeypatch.setattr(ranpac, "_CHUNK", 5)
    parts = taught(stream[:2])
    torch.testing.assert_close(whole.sums.gram, parts.sums.gram)
    torch.testing.assert_close(whole.sums.targets, parts.sums.targets)
    torch.testing.assert_close(whole.weights, parts.weights, rtol=1e-4, atol=1e-6)


def test_a_domain_that_comes_twice_counts_twice(stream: Stream) -> None:
    again = Domain("again", stream[0].train, stream[0].test)
    once, twice = taught([stream[0]], ridge=1.0), taught([stream[0], again], ridge=2.0)
    torch.testing.assert_close(twice.sums.gram, 2 * once.sums.gram)
    # (2 G + 2 lambda I)^-1 2 Q is the old solution
    torch.testing.assert_close(twice.weights, once.weights, rtol=1e-4, atol=1e-6)


def test_targets_for_rows_add_up_to_those_for_classes(stream: Stream) -> None:
    shared = taught(stream, ridge=1.0)
    rows = taught(stream, ridge=1.0, targets="rows")
    assert rows.weights.shape == (M, 12)
    assert shared.weights.shape == (M, 4)
    torch.testing.assert_close(rows.weights.reshape(M, 3, 4).sum(1), shared.weights, rtol=1e-4, atol=1e-6)


def test_the_smaller_factorisation_chooses_the_same_ridge(stream: Stream) -> None:
    """``HH'`` of 26 images against ``H'H`` of 48 random features."""
    method = taught(stream[:1])
    method._place_sums(torch.device("cpu"), 4)
    H, names = hidden(method, stream[:1])
    targets = torch.tensor([CLASSES.index(name) for name in names])[torch.randperm(32)]
    G, Q = F.RidgeAccumulator(M, 4), torch.nn.functional.one_hot(targets, 4)
    G.update(H[:26], targets[:26])
    large = F.select_ridge(G.gram, G.targets, H[26:], targets[26:])
    small = F.select_ridge(H[:26] @ H[:26].T, Q[:26], H[26:] @ H[:26].T, targets[26:])
    assert small.ridge == large.ridge
    torch.testing.assert_close(torch.tensor(small.errors[4:]), torch.tensor(large.errors[4:]), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("projection", [8, 26, 27, 200])
def test_both_ways_to_choose_leave_the_same_sums(stream: Stream, projection: int) -> None:
    chosen, given = taught(stream[:2], projection=projection), taught(stream[:2], projection=projection, ridge=1.0)
    torch.testing.assert_close(chosen.sums.gram, given.sums.gram)
    torch.testing.assert_close(chosen.sums.targets, given.sums.targets)
    assert chosen.sums.count == given.sums.count == 64


def test_a_domain_of_one_image() -> None:
    method = taught([domain("day", ["east"], train=1), domain("night")])
    assert bool(method.weights.isfinite().all())
    assert bool(taught([domain("day", ["east"], train=1)], projection=1).weights.isfinite().all())


def test_rows_of_a_class_score_alike(stream: Stream) -> None:
    method = taught(stream)
    inputs = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        rows = method(inputs)
    assert torch.equal(rows[:, :4], rows[:, 4:8])
    assert torch.equal(method.fold(rows), rows[:, :4])


def test_toolbox_recipe_scores_by_cosine(stream: Stream) -> None:
    config = configure(RanPAC, "official-pilot")
    assert isinstance(config, RanPACConfig)
    assert (config.scores, config.targets) == ("cosine", "rows")
    method = taught(stream, scores=config.scores, targets=config.targets)
    inputs = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        scores = method(inputs)
    assert scores.shape == (3, 12)
    assert scores.abs().max() <= 1 + 1e-5


def test_a_ridge_below_the_rounding_is_raised_and_said(stream: Stream) -> None:
    pupil = learner("ranpac", projection=400, ridge=1e-30)
    records = pupil.learn(stream[0]).records
    assert records["ridge"] > 1e-30
    assert any("below the rounding" in warning for warning in records["warnings"])
    assert bool(method_of(pupil).weights.isfinite().all())


def test_memory_is_known_here() -> None:
    found = ranpac._memory(torch.device("cpu"))
    assert found is None or found > 10**8


def test_memory_is_announced_or_refused_before_it_is_taken(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranpac, "_memory", lambda device: 2 * 10**9)
    pupil = learner("ranpac", projection=10_000)
    with pytest.raises(ConfigError, match=r"Gram matrix of 0\.8 GB .* params\.projection=2000"):
        pupil.learn(stream[0])
    assert method_of(pupil).sums.gram.numel() == 0
    monkeypatch.setattr(ranpac, "_memory", lambda device: None)
    monkeypatch.setattr(ranpac, "_WORTH_SAYING", 1000)
    records = learner("ranpac", projection=100).learn(stream[0]).records
    assert any("Gram matrix" in warning for warning in records["warnings"])


def test_size_of_the_state(stream: Stream) -> None:
    pupil = learner("ranpac", projection=M)
    d = pupil.method.backbone.num_features
    backbone = sum(p.numel() for p in pupil.method.backbone.parameters())
    for one in stream:
        pupil.learn(one)
        parts = pupil.state().parts
        assert {key: tuple(value.shape) for key, value in parts["sums"].items()} == {
            "gram": (M, M),
            "targets": (M, 4),
            "count": (),
        }
        assert parts["sums"]["gram"].dtype == torch.float64
        price = pupil.method.price()
        assert (price.parameters, price.trainable_parameters) == (backbone + d * M + M * 4, 0)
        assert price.inference_passes == 1


def test_the_first_phase_trains_adapters_once(stream: Stream) -> None:
    pupil = learner("ranpac", projection=M, first_phase=True)
    pupil.learn(stream[0])
    first = {key: v.clone() for key, v in tensors(pupil.state()).items() if key.startswith(("adapters", "projection"))}
    assert first["adapters/0.up.weight"].abs().max() > 0
    report = pupil.learn(stream[1])
    second = tensors(pupil.state())
    assert_same_bits(first, {key: second[key] for key in first})
    assert report.work["train"] == 0
    assert_same_bits(dict(tiny_backbone().state_dict()), pupil.state().parts["backbone"])
    expected = least_squares(method_of(pupil), stream[:2], report.records["ridge"])
    for name, w in by_name(method_of(pupil)).items():
        torch.testing.assert_close(w, expected[name], rtol=1e-3, atol=1e-4)


def test_only_the_first_phase_needs_a_vision_transformer(stream: Stream) -> None:
    backbone = tiny_backbone("test_resnet")
    RanPAC.check(backbone)
    with pytest.raises(BackboneError, match="first_phase"):
        RanPAC(RanPACConfig(first_phase=True), backbone)
    pupil = learner("ranpac", backbone=backbone, projection=M)
    pupil.learn(stream[0])
    assert pupil.evaluate(stream[0]).A_b >= 0


def test_interrupted_in_the_first_phase(stream: Stream, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.methods import test_contract as contract

    options: dict[str, Any] = {"projection": M, "first_phase": True}
    unbroken = contract.learn_all(learner("ranpac", **options), stream[:2], tmp_path / "unbroken")
    monkeypatch.setattr("ductwork.engine.learner.Vault", contract._FailingVault)
    for moment in (2, 4, 6):  # in the training, before the projection, in the second stage
        contract._FailingVault.left = moment
        with pytest.raises(contract._KilledError):
            contract.learn_all(learner("ranpac", **options), stream[:2], tmp_path / str(moment))
        resumed = contract.learn_all(learner("ranpac", **options), stream[:2], tmp_path / str(moment))
        assert_same_bits(tensors(unbroken.state()), tensors(resumed.state()))
        assert contract.stable(unbroken) == contract.stable(resumed)
