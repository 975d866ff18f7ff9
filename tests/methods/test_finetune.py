"""Finetune: what goes on from the stage before, what stands still, and what the price is."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from ductwork.data.domain import Stream
from ductwork.data.loading import Batch
from ductwork.methods.finetune import Finetune, FinetuneConfig
from ductwork.methods.heads import LinearHead, cross_entropy_with_decay
from ductwork.methods.registry import configure
from tests.methods.test_contract import learner


def two_stages(stream: Stream, **params: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Rows and biases of the first block after the first and after the second domain."""
    pupil = learner("finetune", **params)
    head, found = cast(Finetune, pupil.method).head, []
    for one in stream[:2]:
        pupil.learn(one)
        found.append([head.blocks[0].detach().clone(), head.biases[0].detach().clone()])
    return found[0], found[1]


@pytest.mark.parametrize(
    "params",
    [
        {"weight_decay_later": 2e-4},
        {"weight_decay_later": 0.5},
        {"decay_old_rows": True, "weight_decay_later": 0.0},
    ],
)
def test_old_rows_keep_their_bits(stream: Stream, params: dict[str, Any]) -> None:
    before, after = two_stages(stream, **params)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_old_rows_shrink_where_asked(stream: Stream) -> None:
    before, after = two_stages(stream, decay_old_rows=True, weight_decay_later=0.5, lr_head=0.1)
    shrink = after[0].norm(dim=1) / before[0].norm(dim=1)
    assert bool((shrink < 0.95).all())
    torch.testing.assert_close(shrink, shrink[:1].expand(len(shrink)), rtol=1e-4, atol=0)
    assert configure(Finetune, "official").model_dump()["decay_old_rows"]


def test_old_rows_get_no_gradient_of_the_loss() -> None:
    torch.manual_seed(0)
    head = LinearHead(6)
    for _ in range(3):
        head.add_block(LinearHead.random_rows(4, 6))
    batch = Batch(torch.randn(5, 6), torch.tensor([0, 3, 1, 2, 0]), torch.arange(5), 5)
    old = [*head.old_blocks(), *list(head.biases)[:-1]]
    cross_entropy_with_decay(old)(head(batch.inputs, -1), batch).backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None and not p.grad.any() for p in old), "exactly zero, so that only decay acts"
    assert all(p.grad is not None and p.grad.any() for p in (head.blocks[-1], head.biases[-1]))


def test_the_loss_is_that_of_all_rows_with_the_others_at_minus_infinity() -> None:
    torch.manual_seed(0)
    head = LinearHead(6)
    for _ in range(2):
        head.add_block(LinearHead.random_rows(4, 6))
    inputs, targets = torch.randn(5, 6, requires_grad=True), torch.tensor([0, 3, 1, 2, 0])
    sliced = nn.functional.cross_entropy(head(inputs, -1), targets)
    masked = head(inputs).index_fill(1, torch.arange(4), float("-inf"))
    whole = nn.functional.cross_entropy(masked, targets + 4)
    torch.testing.assert_close(sliced, whole)
    torch.testing.assert_close(*(torch.autograd.grad(loss, inputs)[0] for loss in (sliced, whole)))


def test_the_backbone_goes_on_from_the_domain_before(stream: Stream) -> None:
    """Without epochs in the second stage it is still the first domain's, not the pre-trained one."""
    pupil = learner("finetune")
    pretrained = {key: value.clone() for key, value in pupil.method.backbone.state_dict().items()}
    pupil.learn(stream[0])
    first = {key: value.clone() for key, value in pupil.method.backbone.state_dict().items()}
    assert any(not torch.equal(first[key], pretrained[key]) for key in first)
    cast(Finetune, pupil.method).config = FinetuneConfig(epochs=0)
    pupil.learn(stream[1])
    assert all(torch.equal(first[key], value) for key, value in pupil.method.backbone.state_dict().items())
