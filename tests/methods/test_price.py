"""What each method costs after three domains, by the formulas of the papers, and counted: numbers, bytes, passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from timm.models.vision_transformer import Block

from ductwork.backbones.base import Backbone
from ductwork.data.domain import Stream
from ductwork.engine.learner import Learner
from ductwork.methods.registry import methods
from tests.conftest import CLASSES
from tests.methods.test_contract import learner, tensors

B, C, M = 3, len(CLASSES), 200
"""Domains, classes of each, and random features of RanPAC."""


class Sizes(NamedTuple):
    """Of the backbone, in numbers."""

    all: int
    width: int
    depth: int
    last: int
    """The last block and the final norm."""


class Cost(NamedTuple):
    """Beside the backbone: numbers that prediction needs, bytes that the state holds, forward passes an image."""

    numbers: Callable[[Sizes], int]
    state: Callable[[Sizes], int] = lambda s: 0
    """Bytes beyond four for each number of backbone and prediction."""
    passes: Callable[[Sizes], float] = lambda s: 1.0


def linear(rows: int, s: Sizes) -> int:
    return rows * (s.width + 1)


def cosine(rows: int, s: Sizes) -> int:
    return rows * s.width + 1


EXPECTED = {
    "finetune": Cost(lambda s: linear(B * C, s)),
    "replay": Cost(lambda s: linear(B * C, s)),  # exemplars are names
    "icarl": Cost(lambda s: linear(B * C, s), lambda s: 4 * B * C * s.width),  # means of exemplars
    "memo": Cost(
        lambda s: (B - 1) * s.last + B * C * (B * s.width + 1),
        passes=lambda s: 1 + (B - 1) / s.depth,  # only the last block is passed once for each domain
    ),
    "simplecil": Cost(lambda s: cosine(B * C, s)),
    "l2p": Cost(lambda s: 10 * (5 + 1) * s.width + linear(B * C, s), passes=lambda s: 2),
    "dualprompt": Cost(
        lambda s: 2 * 2 * 5 * s.width + 10 * (3 * 2 * 5 + 1) * s.width + linear(B * C, s), passes=lambda s: 2
    ),
    "coda-prompt": Cost(lambda s: B * 20 * 5 * (8 + 1 + 1) * s.width + linear(B * C, s), passes=lambda s: 2),
    "ease": Cost(lambda s: B * s.depth * (2 * 64 * s.width + 64 + s.width) + B * C * B * s.width, passes=lambda s: B),
    # the sums are kept in float64, with one integer that counts images
    "ranpac": Cost(lambda s: s.width * M + M * C, lambda s: 8 * (M * M + M * C) + 8),
    "s-iprompt": Cost(lambda s: B * ((10 + 5) * s.width + linear(C, s)), passes=lambda s: 2),
    # phi_0, the class centres, and a sketch of 8192 numbers of each task vector
    "duct": Cost(lambda s: cosine(B * C, s), lambda s: 4 * (s.all + B * C * s.width + B * 8192)),
    # phi_0, sums and counts of the class centres
    "joint": Cost(lambda s: cosine(C, s), lambda s: 4 * (s.all + C * s.width + C)),
}


def sizes(backbone: Backbone) -> Sizes:
    model = backbone.model
    last = sum(p.numel() for p in [*model.blocks[-1].parameters(), *model.norm.parameters()])
    return Sizes(sum(p.numel() for p in backbone.parameters()), backbone.num_features, len(model.blocks), last)


def counted_passes(pupil: Learner, depth: int) -> float:
    """Blocks that ran, in passes through all of them. Counted at their MLPs, which are run by their own code."""
    ran: list[int] = []
    blocks = [module for module in pupil.method.modules() if isinstance(module, Block)]
    hooks = [block.mlp.register_forward_hook(lambda *_: ran.append(1)) for block in blocks]
    with torch.no_grad():
        pupil.method.eval()(torch.randn(2, 3, 32, 32))
    for hook in hooks:
        hook.remove()
    return len(ran) / depth


def test_every_method_has_a_price() -> None:
    own = {name for name, method in methods().items() if method.__module__.startswith("ductwork.methods.")}
    assert own == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_price_is_that_of_the_formula_and_what_is_counted(name: str, stream: Stream) -> None:
    pupil = learner(name, epochs=0, retrain_epochs=0)
    for one in stream:
        pupil.learn(one)
    s, expected, price = sizes(pupil.method.backbone), EXPECTED[name], pupil.method.price()
    assert price.parameters == s.all + expected.numbers(s)
    assert sum(t.nbytes for t in tensors(pupil.state()).values()) == 4 * price.parameters + expected.state(s)
    assert price.inference_passes == pytest.approx(expected.passes(s))
    assert counted_passes(pupil, s.depth) == pytest.approx(expected.passes(s))
