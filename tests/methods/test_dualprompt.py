"""DualPrompt: what a domain may change, where its prefix comes from, and who gets it."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor

from ductwork.backbones.tokens import embed, finish, pool, run_blocks
from ductwork.data.domain import Stream
from ductwork.engine.learner import Learner
from ductwork.errors import BackboneError, ConfigError
from ductwork.methods.dualprompt import DualPrompt, DualPromptConfig
from ductwork.methods.registry import configure
from tests.backbones.models import small_vit
from tests.conftest import domain
from tests.methods.test_contract import learner

WIDTH = 64


def taught(domains: int = 1, **params: Any) -> tuple[Learner, DualPrompt]:
    pupil = learner("dualprompt", **params)
    for number in range(domains):
        pupil.learn(domain(("day", "dusk", "night")[number], train=4, seed=number))
    return pupil, cast(DualPrompt, pupil.method)


@pytest.fixture
def inputs() -> Tensor:
    return torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(2))


def test_state_has_the_size_of_the_formula() -> None:
    _, method = taught(epochs=0)
    entry = 3 * 2 * 5 * WIDTH + WIDTH
    assert sum(p.numel() for p in method.prompts.values()) == 2 * 2 * 5 * WIDTH + 10 * entry
    assert method.price().trainable_parameters == 2 * 2 * 5 * WIDTH + entry + 4 * WIDTH + 4


def test_a_domain_changes_its_own_prefix_and_key_and_what_is_shared(stream: Stream) -> None:
    pupil, method = taught(2)
    before = {name: value.detach().clone() for name, value in method.prompts.items()}
    rows = [block.detach().clone() for block in [*method.head.blocks, *method.head.biases]]
    pupil.learn(stream[2])
    changed = {name for name, value in method.prompts.items() if not torch.equal(value, before[name])}
    assert changed == {"general", "expert_2", "key_2"}
    now = [*list(method.head.blocks)[:-1], *list(method.head.biases)[:-1]]
    assert all(torch.equal(a, b) for a, b in zip(rows, now, strict=True))


def test_a_prefix_starts_from_the_one_before() -> None:
    _, method = taught(2, epochs=0)
    assert torch.equal(method.prompts["expert_1"], method.prompts["expert_0"])
    assert not torch.equal(method.prompts["expert_2"], method.prompts["expert_1"])
    assert not torch.equal(method.prompts["key_1"], method.prompts["key_0"]), "keys are not handed on"


def test_the_pool_grows_when_it_is_used_up() -> None:
    _, method = taught(3, epochs=1, pool=2)
    assert sum(name.startswith("expert_") for name in method.prompts) == 3
    assert sum(name.startswith("key_") for name in method.prompts) == 3


def test_the_nearest_key_wins() -> None:
    _, method = taught(2, epochs=0)
    query = torch.stack([2 * method.prompts["key_1"], method.prompts["key_0"], method.prompts["key_5"]]).detach()
    chosen = method.choose(query)
    assert chosen[:2].tolist() == [1, 0]
    assert chosen[2] < 2, "entry 5 was never trained"


def test_untrained_keys_and_votes_are_options() -> None:
    _, method = taught(2, epochs=0, untrained_keys_eligible=True)
    query = torch.stack([method.prompts[f"key_{k}"] for k in (5, 1, 5)]).detach()
    assert method.choose(query).tolist() == [5, 1, 5]
    _, method = taught(2, epochs=0, untrained_keys_eligible=True, batchwise_at_test=True)
    assert method.choose(query).tolist() == [5]
    official = configure(DualPrompt, "official").model_dump()
    assert official["untrained_keys_eligible"]
    assert official["batchwise_at_test"]
    assert "depend" in DualPrompt.recipes["official"].summary


def test_training_uses_the_newest_prefix_whatever_the_keys_say(inputs: Tensor) -> None:
    _, method = taught(2, lambda_key=0.5)
    with torch.no_grad():
        query = method.backbone(inputs)
        features, penalty = method.train().encode(inputs)
        expected = -0.5 * torch.cosine_similarity(query, method.prompts["key_1"][None])
        torch.testing.assert_close(penalty, expected, rtol=1e-4, atol=1e-6)
        method.prompts["key_1"].copy_(query.mean(0))
        method.prompts["key_0"].copy_(-query.mean(0))
        torch.testing.assert_close(method.eval().encode(inputs)[0], features)


def test_prefixes_are_keys_and_values_of_their_layers(inputs: Tensor) -> None:
    _, method = taught()
    backbone, general, expert = method.backbone, method.prompts["general"], method.prompts["expert_0"]
    prefixes = {layer: (general[layer, :1], general[layer, 1:]) for layer in (0, 1)}
    prefixes |= {layer + 2: (expert[layer, :1], expert[layer, 1:]) for layer in (0, 1, 2)}
    with torch.no_grad():
        expected = pool(backbone, finish(backbone, run_blocks(backbone, embed(backbone, inputs), prefixes=prefixes)))
        torch.testing.assert_close(method.eval().encode(inputs)[0], expected, rtol=1e-4, atol=1e-5)


def test_shallow_backbones_and_impossible_layers() -> None:
    method = DualPrompt(DualPromptConfig(), small_vit())
    assert (method.g_layers, method.e_layers) == ((0, 1), (2,))
    with pytest.raises(BackboneError, match="has 2 layers"):
        DualPrompt(DualPromptConfig(), small_vit(depth=2))
    with pytest.raises(ConfigError, match="a layer takes one prefix"):
        configure(DualPrompt, params={"g_layers": [0, 2]})
