"""EASE: what its subspaces, prototypes and weights promise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ductwork import functional as F
from ductwork.backbones import tokens as T
from ductwork.data.domain import Stream
from ductwork.engine.bench import Bench
from ductwork.engine.learner import Learner
from ductwork.errors import BackboneError
from ductwork.methods.ease import AdaptedBackbone, Ease, EaseConfig
from tests.conftest import CLASSES, domain, tiny_backbone
from tests.methods.test_contract import assert_same_bits, learner, tensors


def ease(pupil: Learner) -> Ease:
    assert isinstance(pupil.method, Ease)
    return pupil.method


@pytest.fixture
def inputs() -> Tensor:
    return torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(3))


def test_new_adapters_give_the_backbones_features(inputs: Tensor) -> None:
    backbone = tiny_backbone()
    adapted = AdaptedBackbone(backbone, AdaptedBackbone.new_adapters(backbone, 8, 0.1, 0.1)).eval()
    with torch.no_grad():
        assert torch.equal(adapted(inputs), backbone(inputs))


def test_without_training_it_is_the_nearest_center(stream: Stream, inputs: Tensor) -> None:
    """At initialisation all subspaces are phi_0, so each row's weights add up to 1 + alpha on one cosine."""
    pupil, simple = learner("ease", epochs=0, alpha=0.0), learner("simplecil")
    for one in stream:
        pupil.learn(one)
        simple.learn(one)
    with torch.no_grad():
        torch.testing.assert_close(pupil.method(inputs), simple.method(inputs))


def test_learning_changes_neither_backbone_nor_earlier_adapters(stream: Stream) -> None:
    pupil = learner("ease")
    pupil.learn(stream[0])
    first = {key: value.clone() for key, value in tensors(pupil.state()).items() if "prototypes" not in key}
    pupil.learn(stream[1])
    second = tensors(pupil.state())
    assert_same_bits(first, {key: second[key] for key in first})
    assert_same_bits(dict(tiny_backbone().state_dict()), pupil.state().parts["backbone"])
    up = second["adapters-1/0.up.weight"]
    assert up.abs().max() > 0, "the second set was not trained"


def test_completion_of_a_single_row_returns_the_matched_prototype() -> None:
    """With one new row, or at temperature 0, the weights are one-hot."""
    pupil = learner("ease", temperature=1e-6)
    pupil.learn(domain("day", ["east", "north"]))
    pupil.learn(domain("night", ["south", "west", "east"], seed=5))
    method = ease(pupil)
    own, new = method.prototypes.reshape(5, 2, -1).unbind(1)
    nearest = F.cosine_logits(own[:2], own[2:]).argmax(1)
    torch.testing.assert_close(new[:2], new[2:][nearest])


def test_new_rows_are_measured_in_every_subspace(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[Tensor] = []
    centers = Bench.centers

    def spy(bench: Bench, model: Callable[[Tensor], Tensor]) -> Tensor:
        measured.append(centers(bench, model))
        return measured[-1]

    monkeypatch.setattr(Bench, "centers", spy)
    pupil = learner("ease")
    for b, one in enumerate(stream, start=1):
        measured.clear()
        report = pupil.learn(one)
        assert len(measured) == b
        assert report.work["frozen"] == b * len(one.train)
        assert torch.equal(ease(pupil).prototypes[pupil.method.rows.span(-1)], torch.cat(measured, dim=1))


def test_no_block_of_zeros_remains_and_completion_is_the_functions(stream: Stream) -> None:
    pupil = learner("ease")
    for one in stream:
        pupil.learn(one)
    method = ease(pupil)
    found = method.prototypes.reshape(12, 3, -1)
    assert bool((found.norm(dim=2) > 1e-3).all())
    unknown = found.clone()
    for row, stage in enumerate(method.rows.row_block().tolist()):
        unknown[row, stage + 1 :] = torch.nan
    torch.testing.assert_close(F.complete_prototypes(unknown, method.rows.row_block()), found)


def test_alpha_zero_uses_the_own_subspace_only(stream: Stream, inputs: Tensor) -> None:
    pupil = learner("ease", alpha=0.0)
    pupil.learn(stream[0])
    pupil.learn(stream[1])
    method = ease(pupil)
    tokens = T.embed(method.backbone, inputs)
    with torch.no_grad():
        scores = method(inputs)
        for k in range(2):
            rows = method.rows.span(k)
            own = method.prototypes.reshape(8, 2, -1)[rows, k]
            features = method._subspaces()[k].from_tokens(tokens)
            torch.testing.assert_close(scores[:, rows], F.cosine_logits(features, own))


def test_weights_and_passes(stream: Stream, inputs: Tensor) -> None:
    pupil = learner("ease", alpha=0.3, beta=0.2)
    for one in stream:
        pupil.learn(one)
    method = ease(pupil)
    expected = torch.full((3, 3), 0.15).fill_diagonal_(1.0).repeat_interleave(4, 0)
    torch.testing.assert_close(method.weights(), torch.cat([torch.full((12, 1), 0.2), expected], 1))
    assert method.price().inference_passes == 4
    passes: list[int] = []
    # adapters replace the block for the call, so what is counted is a part that every pass runs
    method.backbone.model.norm.register_forward_hook(lambda *_: passes.append(1))
    with torch.no_grad():
        method(inputs)
    assert len(passes) == 4


def test_the_pretrained_space_counts_with_beta(stream: Stream, inputs: Tensor) -> None:
    plain, more = learner("ease"), learner("ease", beta=0.5)
    simple = learner("simplecil")
    for pupil in (plain, more, simple):
        pupil.learn(stream[0])
    with torch.no_grad():
        torch.testing.assert_close(more.method(inputs), plain.method(inputs) + 0.5 * simple.method(inputs))


def test_size_of_the_state(stream: Stream) -> None:
    pupil = learner("ease", bottleneck=8)
    d, depth = pupil.method.backbone.num_features, len(pupil.method.backbone.model.blocks)
    one_set = depth * (2 * d * 8 + d + 8)
    backbone = sum(p.numel() for p in pupil.method.backbone.parameters())
    for b, one in enumerate(stream, start=1):
        pupil.learn(one)
        rows = b * len(CLASSES)
        assert pupil.method.price().parameters == backbone + b * one_set + rows * b * d
        assert pupil.method.price().trainable_parameters == one_set
        assert pupil.method.price().inference_passes == b
        assert ease(pupil).prototypes.shape == (rows, b * d)
        assert sum(v.numel() for k, v in tensors(pupil.state()).items() if k.startswith("adapters-")) == b * one_set


def test_the_published_size() -> None:
    """1,189,632 numbers a domain on ViT-B/16 with a bottleneck of 64."""
    assert 12 * sum(p.numel() for p in T.Adapter(768, EaseConfig().bottleneck).parameters()) == 1_189_632


def test_it_needs_a_vision_transformer() -> None:
    with pytest.raises(BackboneError, match="'ease' needs a Vision Transformer"):
        Ease.check(tiny_backbone("test_resnet"))
