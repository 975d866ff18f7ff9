"""L2P: who picks what, what the picked prompts do, and what becomes of the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, cast

import pytest
import torch
from torch import Tensor

from ductwork import functional as F
from ductwork.backbones.tokens import embed, finish, insert_prompts, run_blocks
from ductwork.data.domain import Stream
from ductwork.engine.learner import Learner
from ductwork.errors import ConfigError
from ductwork.methods.l2p import L2P
from ductwork.methods.registry import configure
from tests.conftest import domain
from tests.methods.test_contract import learner

WIDTH = 64


def taught(**params: Any) -> tuple[Learner, L2P]:
    pupil = learner("l2p", **params)
    pupil.learn(domain("day", train=4))
    return pupil, cast(L2P, pupil.method)


@pytest.fixture
def inputs() -> Tensor:
    return torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(2))


def test_state_has_the_size_of_the_formula() -> None:
    _, method = taught(epochs=0)
    assert sum(p.numel() for p in method.prompts.values()) == 10 * 5 * WIDTH + 10 * WIDTH
    head = 4 * WIDTH + 4
    assert method.price().trainable_parameters == 10 * 5 * WIDTH + 10 * WIDTH + head
    assert all(p.abs().max() <= 1 for p in method.prompts.values())


def test_each_image_picks_for_itself_at_test() -> None:
    _, method = taught(epochs=0)
    similarity = torch.randn(8, 10)
    method.eval()
    assert torch.equal(method.select(similarity), similarity.topk(5).indices)
    method.train()
    ids = method.select(similarity)
    assert torch.equal(ids, ids[:1].expand(8, 5)), "a training batch shares its choice"


@pytest.mark.parametrize(("batchwise", "train", "test"), [("never", 0, 0), ("train", 1, 0), ("always", 1, 1)])
def test_batchwise(batchwise: str, train: int, test: int) -> None:
    _, method = taught(epochs=0, batchwise=batchwise, top_k=2)
    similarity = torch.eye(10)[[1, 4, 4, 7]] + torch.eye(10)[[4, 1, 1, 8]] / 2
    shared = [[1, 4]] * 4
    own = [[1, 4], [4, 1], [4, 1], [7, 8]]
    assert method.train().select(similarity).tolist() == (shared if train else own)
    assert method.eval().select(similarity).tolist() == (shared if test else own)


def test_recipes_say_how_they_choose() -> None:
    kind = L2P
    assert configure(kind).model_dump()["batchwise"] == "train"
    for recipe in ("official", "jax"):
        assert configure(kind, recipe).model_dump()["batchwise"] == "always"
        assert "depend" in kind.recipes[recipe].summary
    with pytest.raises(ConfigError, match="top_k = 11 is more than the 10 prompts"):
        configure(kind, params={"top_k": 11})


@pytest.mark.parametrize("layout", ["after_cls", "first"])
def test_features_are_the_mean_of_the_prompts_outputs(layout: Literal["after_cls", "first"], inputs: Tensor) -> None:
    _, method = taught(layout=layout, top_k=2)
    method.eval()
    backbone = method.backbone
    with torch.no_grad():
        query = backbone(inputs)
        for i in range(len(inputs)):
            ids = F.cosine_logits(query[i : i + 1], method.prompts["key"])[0].topk(2).indices
            prompts = torch.cat([method.prompts["prompt"][k] for k in ids.tolist()])[None]
            if layout == "after_cls":
                prompts = prompts + backbone.model.pos_embed[:, :1]
            tokens = insert_prompts(backbone, embed(backbone, inputs[i : i + 1]), prompts, position=layout)
            start = 1 if layout == "after_cls" else 0
            expected = finish(backbone, run_blocks(backbone, tokens))[:, start : start + 10].mean(1)
            torch.testing.assert_close(method.encode(inputs)[0][i : i + 1], expected, rtol=1e-4, atol=1e-5)


def test_loss_of_the_keys(inputs: Tensor) -> None:
    _, method = taught(epochs=0, lambda_key=0.3)
    with torch.no_grad():
        similarity = F.cosine_logits(method.backbone(inputs), method.prompts["key"])
        penalty = method.eval().encode(inputs)[1]
        torch.testing.assert_close(penalty, -0.3 * similarity.topk(5).values.sum(1))
        assert (penalty.abs() <= 0.3 * 5).all()


def test_prompts_that_nobody_picked_get_no_gradient_and_keep_their_bits(stream: Stream, inputs: Tensor) -> None:
    pupil, method = taught(top_k=2)
    method.train()
    features, penalty = method.encode(inputs)
    (features.sum() + penalty.sum()).backward()  # type: ignore[no-untyped-call]
    for name in ("prompt", "key"):
        gradient = method.prompts[name].grad
        assert gradient is not None
        assert int(gradient.flatten(1).abs().amax(1).count_nonzero()) == 2, "one choice of two for the batch"
    method.zero_grad()

    picked: set[int] = set()
    inner = method.select

    def spy(similarity: Tensor) -> Tensor:
        ids = inner(similarity)
        picked.update(ids.flatten().tolist())
        return ids

    method.select = spy  # type: ignore[method-assign]
    before = {name: value.detach().clone() for name, value in method.prompts.items()}
    pupil.learn(stream[1])
    assert 2 <= len(picked) < 10
    for name, value in before.items():
        for number, (old, new) in enumerate(zip(value, method.prompts[name], strict=True)):
            assert torch.equal(old, new) == (number not in picked), (name, number)


def test_prompts_are_drawn_once(stream: Stream) -> None:
    pupil, method = taught(epochs=0)
    before = _values(method)
    pupil.learn(stream[1])
    for old, new in zip(before, _values(method), strict=True):
        assert torch.equal(old, new)


def _values(method: L2P) -> Iterator[Tensor]:
    return iter([value.detach().clone() for value in method.prompts.values()])
