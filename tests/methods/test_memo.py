"""MEMO: what is shared, what is fixed, how the head grows, and what it costs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ductwork.backbones import tokens
from ductwork.backbones.base import Backbone
from ductwork.data.domain import Stream
from ductwork.data.loading import Batch
from ductwork.engine.learner import Learner
from ductwork.errors import BackboneError
from ductwork.methods.memo import MEMO, WideningHead
from ductwork.methods.registry import configure
from tests.conftest import domain, tiny_backbone
from tests.methods.test_exemplars import pupil


def memo(learner: Learner) -> MEMO:
    assert isinstance(learner.method, MEMO)
    return learner.method


def copied(part: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value.detach().clone() for key, value in part.items()}


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    assert all(torch.equal(a[key], b[key]) for key in a)


def test_at_the_start_the_first_specialised_block_on_the_trunk_is_the_backbone(backbone: Backbone) -> None:
    inputs = torch.randn(3, 3, 32, 32)
    method = MEMO(MEMO.Config(), backbone).eval()
    with torch.no_grad():
        torch.testing.assert_close(method.features(inputs), backbone(inputs), atol=1e-5, rtol=0)
        shared = tokens.run_blocks(backbone, tokens.embed(backbone, inputs), stop=5)
        torch.testing.assert_close(tokens.pool(backbone, method._newest()(shared)), backbone(inputs), atol=1e-5, rtol=0)


def test_after_the_first_domain_only_the_newest_block_and_the_head_move(stream: Stream) -> None:
    learner = pupil("memo")
    pretrained = copied(dict(learner.method.backbone.state_dict()))
    learner.learn(stream[0])
    first = copied(memo(learner).parts()["backbone"])
    assert not all(torch.equal(first[key], pretrained[key]) for key in first), "the first domain trains all of it"
    learner.learn(stream[1])
    second = copied(memo(learner).parts()["specialised-2"])
    assert_same(memo(learner).parts()["backbone"], first)
    assert not torch.equal(second["block.mlp.fc1.weight"], first["model.blocks.5.mlp.fc1.weight"])
    learner.learn(stream[2])
    parts = memo(learner).parts()
    assert set(parts) == {"backbone", "head", "specialised-2", "specialised-3"}
    assert_same(parts["backbone"], first)
    assert_same(parts["specialised-2"], second)
    assert parts["head"]["weight"].shape == (12, 3 * 64)
    assert parts["head"]["bias"].shape == (12,)


@pytest.mark.parametrize("start", ["pretrained", "random"])
def test_where_blocks_start(stream: Stream, start: str) -> None:
    learner = pupil("memo", epochs=0, specialised_init=start)
    pretrained = copied(dict(learner.method.backbone.state_dict()))
    learner.learn(stream[0])
    learner.learn(stream[1])
    parts = memo(learner).parts()
    own = {key: value for key, value in parts["backbone"].items() if not key.startswith("model.blocks.5.")}
    assert_same(own, {key: pretrained[key] for key in own})
    key = "mlp.fc1.weight"
    same = torch.equal(parts["backbone"][f"model.blocks.5.{key}"], pretrained[f"model.blocks.5.{key}"])
    assert same == (start == "pretrained")
    assert torch.equal(parts["specialised-2"][f"block.{key}"], parts["backbone"][f"model.blocks.5.{key}"])
    assert torch.equal(parts["specialised-2"]["norm.weight"], pretrained["model.norm.weight"])


def test_the_head_grows_in_both_directions() -> None:
    torch.manual_seed(0)
    head = WideningHead()
    head.grow(3, 4)
    head.bias.data.fill_(2.0)
    old = head.weight.detach().clone()
    head.grow(5, 8)
    assert torch.equal(head.weight[:3, :4], old)
    assert head.bias.tolist() == [2.0, 2.0, 2.0, 0.0, 0.0]
    new = torch.cat([head.weight[:3, 4:].flatten(), head.weight[3:].flatten()]).detach()
    assert bool((new != 0).all()), "new columns of old rows are random, too"
    assert float(new.abs().max()) <= (3 / 8) ** 0.5


def test_alignment_gives_new_rows_the_mean_length_of_the_old() -> None:
    torch.manual_seed(0)
    head = WideningHead()
    head.grow(7, 6)
    head.weight.data[4:] *= 5
    before = head.weight.detach().clone()
    factor = head.align(3)
    lengths = head.weight.norm(dim=1)
    torch.testing.assert_close(lengths[:4].mean(), lengths[4:].mean())
    torch.testing.assert_close(head.weight[4:], before[4:] * factor)
    assert torch.equal(head.weight[:4], before[:4])


@pytest.mark.parametrize("align", [True, False])
def test_alignment_comes_after_every_domain_but_the_first(stream: Stream, align: bool) -> None:
    learner = pupil("memo", weight_align=align, epochs=2)
    reports = [learner.learn(one) for one in stream[:2]]
    assert ["weight_align" in report.records for report in reports] == [False, align]
    lengths = memo(learner).head.weight.norm(dim=1)
    assert torch.allclose(lengths[:4].mean(), lengths[4:].mean()) == align


def test_the_auxiliary_head_tells_new_classes_and_any_old_row_apart() -> None:
    method = MEMO(MEMO.Config(alpha_aux=0.5), tiny_backbone())
    method.rows.add("day", ["a", "b"])
    method.rows.add("night", ["b", "c", "d"])
    logits, auxiliary = torch.randn(4, 5), torch.randn(4, 4)
    batch = Batch(torch.empty(4, 0), torch.tensor([0, 1, 2, 4]), torch.arange(4), 4)
    kinds = torch.tensor([0, 0, 1, 3])
    entropy = nn.functional.cross_entropy
    expected = entropy(logits, batch.targets) + 0.5 * entropy(auxiliary, kinds)
    torch.testing.assert_close(method._loss((logits, auxiliary), batch), expected)


def test_the_price_counts_everything_once_and_nothing_is_dead(stream: Stream) -> None:
    learner = pupil("memo", epochs=0)
    learner.learn(stream[0])
    backbone = sum(p.numel() for p in learner.method.backbone.parameters())
    first = learner.method.price()
    assert first.parameters == first.trainable_parameters == backbone + 4 * 65
    assert first.inference_passes == 1
    learner.learn(domain("dusk", ["east", "frame"]))
    learner.learn(stream[2])
    method = memo(learner)
    model = method.backbone.model
    block = sum(p.numel() for p in [*model.blocks[-1].parameters(), *model.norm.parameters()])
    price, head = method.price(), 10 * (3 * 64 + 1)
    assert price.parameters == backbone + 2 * block + head
    assert price.trainable_parameters == block + head + (4 + 1) * (64 + 1), "with the auxiliary head of the last stage"
    assert price.inference_passes == pytest.approx(1 + 2 / 6)
    method.requires_grad_(True)
    method(torch.randn(2, 3, 32, 32)).logsumexp(1).sum().backward()
    assert all(p.grad is not None for p in method.parameters())


def test_a_backbone_without_blocks_is_refused_by_name() -> None:
    with pytest.raises(BackboneError, match=r"'memo' needs a Vision Transformer.*ResNet"):
        Learner("memo", backbone=tiny_backbone("test_resnet"))


def test_the_official_recipe_repeats_what_public_versions_do() -> None:
    values: dict[str, Any] = configure(MEMO, "official").model_dump()
    assert (values["specialised_init"], values["weight_align"]) == ("random", False)
    values = configure(MEMO).model_dump()
    assert (values["specialised_init"], values["weight_align"], values["epochs"]) == ("pretrained", True, 10)
