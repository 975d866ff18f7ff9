"""What the prompt methods share: a backbone that stands still, the query, and the choice by keys."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import nn

from ductwork.backbones.weights import digest
from ductwork.data.domain import Stream
from ductwork.engine.learner import Learner
from ductwork.engine.settings import EngineSettings
from ductwork.errors import BackboneError
from ductwork.methods.prompts import PromptMethod, layers_within, most_frequent
from tests.backbones.models import small_vit
from tests.conftest import tiny_backbone
from tests.methods.test_contract import learner

NAMES = ("coda-prompt", "dualprompt", "l2p")


@pytest.mark.parametrize("name", NAMES)
def test_backbone_stands_still_and_gets_no_gradients(name: str, stream: Stream) -> None:
    pupil = learner(name)
    method = pupil.method
    assert isinstance(method, PromptMethod)
    before = digest(method.backbone.state_dict())
    for one in stream[:2]:
        pupil.learn(one)
    assert digest(method.backbone.state_dict()) == before
    assert all(p.grad is None and not p.requires_grad for p in method.backbone.parameters())
    method.train()
    assert not any(module.training for module in method.backbone.modules())
    moved = {name for name, p in method.named_parameters() if p.requires_grad}
    assert {name for name in moved if name.startswith("head")} == {"head.blocks.1", "head.biases.1"}
    price = method.price()
    assert price.inference_passes == 2
    assert price.trainable_parameters == sum(p.numel() for p in method.parameters() if p.requires_grad)
    assert price.parameters == sum(p.numel() for p in method.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_query_is_what_the_backbone_says_without_prompts(name: str, stream: Stream) -> None:
    pupil = learner(name, epochs=0)
    pupil.learn(stream[0])
    method, seen = pupil.method, []
    assert isinstance(method, PromptMethod)
    inner = method.prompted

    def spy(tokens: torch.Tensor, query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(query)
        return inner(tokens, query)

    method.prompted = spy  # type: ignore[method-assign]
    inputs = torch.randn(3, 3, 32, 32)
    method.train()(inputs)
    assert not seen[0].requires_grad
    assert torch.equal(seen[0], method.backbone(inputs))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_learns_in_any_precision(name: str, precision: Literal["fp32", "bf16"], stream: Stream) -> None:
    settings = EngineSettings(precision=precision, accelerator="cpu", workers=0)
    pupil = Learner(name, backbone=small_vit(), params={"epochs": 1, "batch_size": 16}, settings=settings)
    pupil.learn(stream[0])
    pupil.learn(stream[1])
    assert pupil.predict(stream[0].test)
    assert all(p.dtype == torch.float32 for p in pupil.method.parameters())
    trained = pupil.method
    assert isinstance(trained, PromptMethod)
    assert all(p.isfinite().all() for p in trained.trained())


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_slice_of_a_batch_takes_part(name: str, stream: Stream) -> None:
    pupil = Learner(name, backbone=small_vit(), params={"epochs": 0}, settings=EngineSettings(workers=0))
    pupil.learn(stream[0])
    method = pupil.method
    assert isinstance(method, PromptMethod)
    method.train()
    features, penalty = method.encode(torch.empty(0, 3, 32, 32))
    (features.sum() + penalty.sum()).backward()  # type: ignore[no-untyped-call]
    for parameter in method.trained():
        assert parameter.grad is None or not parameter.grad.any()


@pytest.mark.parametrize("name", NAMES)
def test_needs_a_vision_transformer(name: str) -> None:
    with pytest.raises(BackboneError, match=f"'{name}' needs a Vision Transformer"):
        type(learner(name).method).check(tiny_backbone("test_resnet"))


def test_most_frequent() -> None:
    ids = torch.tensor([[3, 1], [3, 0], [3, 1], [2, 0]])
    assert most_frequent(ids, 5, 2).tolist() == [3, 0], "0 and 1 are level, so the lower one"
    assert most_frequent(ids.flip(0).flip(1), 5, 3).tolist() == [3, 0, 1]


def test_layers_that_do_not_exist_are_left_out() -> None:
    backbone = small_vit()
    assert isinstance(backbone.model.blocks, nn.Sequential)
    assert layers_within(backbone, (0, 2, 3, 4), "x") == (0, 2)
    assert layers_within(backbone, (), "x") == ()
    with pytest.raises(BackboneError, match=r"'x' puts prompts into the layers \[3, 4\].* has 3 layers"):
        layers_within(backbone, (3, 4), "x")
