"""CODA-Prompt: new components are orthogonal to old ones, which stand still, and all of them are weighed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from ductwork.backbones.tokens import embed, finish, pool, run_blocks
from ductwork.data.domain import Stream
from ductwork.engine.learner import Learner
from ductwork.errors import ConfigError
from ductwork.methods.coda_prompt import (
    CodaPrompt,
    component_weights,
    distance_from_orthonormal,
    gram_schmidt,
    orthonormal_complement,
)
from ductwork.methods.registry import configure
from tests.conftest import domain
from tests.methods import test_contract as contract
from tests.methods.test_contract import learner

WIDTH, KINDS = 64, ("prompt", "key", "attention")


def taught(domains: int = 1, **params: Any) -> tuple[Learner, CodaPrompt]:
    pupil = learner("coda-prompt", **{"components_per_domain": 6, **params})
    for number in range(domains):
        pupil.learn(domain(("day", "dusk", "night")[number], train=4, seed=number))
    return pupil, cast(CodaPrompt, pupil.method)


def gram(rows: Tensor) -> Tensor:
    return rows @ rows.mT


@pytest.fixture
def inputs() -> Tensor:
    return torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("draw", [orthonormal_complement, gram_schmidt])
def test_first_components_are_orthonormal(draw: Any) -> None:
    torch.manual_seed(0)
    torch.testing.assert_close(gram(draw(torch.empty(0, 48), 20)), torch.eye(20), rtol=0, atol=1e-5)


def test_new_components_are_orthogonal_to_the_span_of_trained_ones() -> None:
    torch.manual_seed(0)
    old = torch.randn(20, 48)  # far from orthogonal, as training leaves them
    new = orthonormal_complement(old, 20)
    torch.testing.assert_close(gram(new), torch.eye(20), rtol=0, atol=1e-6)
    assert (new @ old.T).abs().max() < 1e-5
    careless = gram_schmidt(old, 20)
    torch.testing.assert_close(careless.norm(dim=1), torch.ones(20))
    assert (careless @ old.T).abs().max() > 0.1, "which is why this one is not the default"


def test_components_without_room_are_orthonormal_among_themselves() -> None:
    pupil, method = taught(2, epochs=0, components_per_domain=40)
    fresh = method.prompts["key_1"][0]
    torch.testing.assert_close(gram(fresh), torch.eye(40), rtol=0, atol=1e-5)
    assert pupil.reports[1].records["warnings"] == ["80 components in 64 dimensions cannot all be orthogonal"]
    assert "warnings" not in pupil.reports[0].records
    with pytest.raises(ConfigError, match="no more than 64"):
        taught(components_per_domain=65)


@pytest.mark.parametrize("init", ["complement", "gram-schmidt"])
def test_without_training_all_components_of_a_layer_are_orthonormal(init: str) -> None:
    _, method = taught(3, epochs=0, init=init)
    for kind in KINDS:
        rows = method.components(kind).flatten(2)
        torch.testing.assert_close(gram(rows), torch.eye(18).expand(5, 18, 18), rtol=0, atol=1e-4)
        assert not torch.equal(rows[0], rows[1])


def test_new_components_are_orthogonal_to_what_training_made_of_old_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    pupil, method = taught(1, lr_backbone=0.05)
    drawn: dict[str, Tensor] = {}
    inner = method.add

    def spy(name: str, values: Tensor) -> Any:
        drawn[name] = values.clone()
        return inner(name, values)

    monkeypatch.setattr(method, "add", spy)
    pupil.learn(domain("dusk", train=4))
    for kind in KINDS:
        old, new = method.prompts[f"{kind}_0"].detach().flatten(2), drawn[f"{kind}_1"].flatten(2)
        assert distance_from_orthonormal(old) > 1e-4, "training moved them"
        torch.testing.assert_close(gram(new), torch.eye(6).expand(5, 6, 6), rtol=0, atol=1e-5)
        assert (new @ old.mT).abs().max() < 1e-5


def test_old_components_keep_their_bits_and_new_ones_move() -> None:
    pupil, method = taught(2)
    before = {name: value.detach().clone() for name, value in method.prompts.items()}
    pupil.learn(domain("night", train=4))
    assert all(torch.equal(value, method.prompts[name]) for name, value in before.items())
    for kind in KINDS:
        assert distance_from_orthonormal(method.prompts[f"{kind}_2"].detach().flatten(2)) > 1e-9, "they start at 0"


def test_state_has_the_size_of_the_formula() -> None:
    _, method = taught(2, epochs=0, components_per_domain=7)
    entry = 5 * 7 * (8 * WIDTH + WIDTH + WIDTH)
    assert sum(p.numel() for p in method.prompts.values()) == 2 * entry
    assert method.price().trainable_parameters == entry + 4 * WIDTH + 4


def test_weights_are_cosines_of_keys_and_attended_queries() -> None:
    torch.manual_seed(0)
    query, keys, attention = torch.randn(3, 16), torch.randn(2, 5, 16), torch.randn(2, 5, 16)
    expected = torch.cosine_similarity(query[None, :, None] * attention[:, None], keys[:, None], dim=-1)
    torch.testing.assert_close(component_weights(query, keys, attention), expected)


def test_prefixes_are_weighted_sums(inputs: Tensor) -> None:
    _, method = taught(2)
    backbone = method.backbone
    with torch.no_grad():
        query = backbone(inputs)
        prefixes = {}
        for layer in range(5):
            prompts, keys, attention = (method.components(kind)[layer] for kind in KINDS)
            weights = torch.cosine_similarity(query[:, None] * attention, keys, dim=-1)
            mixed = torch.einsum("nk,kpd->npd", weights, prompts)
            prefixes[layer] = (mixed[:, :4], mixed[:, 4:])
        expected = pool(backbone, finish(backbone, run_blocks(backbone, embed(backbone, inputs), prefixes=prefixes)))
        torch.testing.assert_close(method.eval().encode(inputs)[0], expected, rtol=1e-4, atol=1e-5)


def test_penalty_of_components_that_are_not_orthogonal(inputs: Tensor) -> None:
    assert distance_from_orthonormal(torch.eye(4, 9)[None]) == 0
    double = 2 * torch.eye(4, 9)[None].repeat(3, 1, 1)  # squared differences: 9 on the diagonal of three 4 x 4 matrices
    assert distance_from_orthonormal(double) == 3 * 9 / 4
    _, method = taught(1, ortho_penalty=0.1, lr_backbone=0.05)
    with torch.no_grad():
        whole = sum(distance_from_orthonormal(method.components(kind).flatten(2)) for kind in KINDS)
        torch.testing.assert_close(method.train().encode(inputs)[1], 0.1 * cast(Tensor, whole))
        assert method.eval().encode(inputs)[1] == 0


def test_a_domain_smaller_than_a_batch_is_learned() -> None:
    pupil = learner("coda-prompt", batch_size=128)
    report = pupil.learn(domain("day", train=2))
    assert report.work["train"] == 2 * 8


def test_what_drop_last_leaves_out_is_not_counted_by_an_interrupted_run_either(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unbroken = contract.learn_all(learner("coda-prompt", batch_size=20), stream[:1], tmp_path / "unbroken")
    assert unbroken.reports[0].work["train"] == 2 * 20, "12 of 32 images are left out in each of two epochs"
    monkeypatch.setattr("ductwork.engine.learner.Vault", contract._FailingVault)
    contract._FailingVault.left = 2
    with pytest.raises(contract._KilledError):
        contract.learn_all(learner("coda-prompt", batch_size=20), stream[:1], tmp_path / "killed")
    resumed = contract.learn_all(learner("coda-prompt", batch_size=20), stream[:1], tmp_path / "killed")
    assert contract.stable(unbroken) == contract.stable(resumed)


def test_recipes_have_the_published_numbers_of_components() -> None:
    expected = {"office-home": 25, "domainnet": 16, "core50": 12, "cddb-hard": 20, "domainnet-cil": 20, "anything": 20}
    for recipe in ("default", "official"):
        found = {s: configure(CodaPrompt, recipe, s).model_dump()["components_per_domain"] for s in expected}
        assert found == expected
        epochs = {s: configure(CodaPrompt, recipe, s).model_dump()["epochs"] for s in expected}
        assert epochs == {s: 5 if s.startswith("domainnet") else 20 for s in expected}
    with pytest.raises(ConfigError, match="length"):
        configure(CodaPrompt, params={"length": 7})
