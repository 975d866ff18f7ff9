"""iCaRL: the distillation, its teacher, and the two classifiers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from ductwork.data.domain import Stream
from ductwork.engine.bench import Bench
from ductwork.methods.icarl import ICaRL, _Taught, distill
from tests.methods.test_exemplars import pupil


def test_distillation_is_minimal_at_the_teacher() -> None:
    torch.manual_seed(0)
    taught = 3 * torch.randn(5, 6)
    logits = torch.cat([taught, torch.randn(5, 4)], dim=1).requires_grad_()
    loss = distill(logits, taught, 2.0)
    shares = torch.softmax(taught / 2, dim=1)
    torch.testing.assert_close(loss, -(shares * shares.log()).sum(1).mean())
    (gradient,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-6, rtol=0)
    for _ in range(5):
        assert distill(logits + 0.3 * torch.randn_like(logits), taught, 2.0) > loss


def test_distillation_by_hand() -> None:
    logits, taught = torch.tensor([[math.log(4.0), 0.0, 9.0]]), torch.tensor([[math.log(16.0), 0.0]])
    # at temperature 2 the teacher says 4 : 1 and the student 2 : 1; nothing is multiplied by 4
    expected = -(0.8 * math.log(2 / 3) + 0.2 * math.log(1 / 3))
    assert float(distill(logits, taught, 2.0)) == pytest.approx(expected, rel=1e-5)


def test_the_teacher_is_no_part_of_what_is_trained() -> None:
    teacher = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)).eval().requires_grad_(False)
    model = _Taught(nn.Linear(4, 5), teacher)
    model.train()
    assert not teacher.training
    assert len(list(model.parameters())) == 2
    inputs = torch.randn(2, 4)
    logits, taught = model(inputs)
    assert logits.requires_grad
    assert not taught.requires_grad
    torch.testing.assert_close(taught, teacher[0](inputs))


def test_the_teacher_is_the_network_of_the_stage_before(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    models: list[_Taught] = []
    original = Bench.train

    def spy(self: Bench, model: Any, *args: Any, **options: Any) -> None:
        models.append(model)
        original(self, model, *args, **options)

    monkeypatch.setattr(Bench, "train", spy)
    learner = pupil("icarl")
    inputs = torch.randn(3, 3, 32, 32)
    learner.learn(stream[0])
    assert models[0]._teacher == (None,)
    with torch.no_grad():
        before = learner.method(inputs)
    learner.learn(stream[1])
    (teacher,) = models[1]._teacher
    assert teacher is not None
    assert torch.equal(teacher(inputs), before), "also after the stage: it never changes"
    assert not torch.equal(learner.method(inputs)[:, :4], before)


def test_distillation_holds_the_old_rows(stream: Stream) -> None:
    inputs = torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    drift = {}
    for weight in (0.0, 20.0):
        learner = pupil("icarl", distillation=weight, epochs=4, lr_backbone=0.01, lr_head=0.01)
        learner.learn(stream[0])
        before = torch.softmax(learner.method(inputs), 1).detach()
        learner.learn(stream[1])
        after = torch.softmax(learner.method(inputs)[:, :4], 1).detach()
        drift[weight] = float((after - before).abs().mean())
    assert drift[20.0] < drift[0.0]


@pytest.mark.parametrize(("classifier", "other"), [("head", "nme"), ("nme", "head")])
def test_both_classifiers_are_measured_in_one_pass(stream: Stream, classifier: str, other: str) -> None:
    learner = pupil("icarl", classifier=classifier)
    method = learner.method
    assert isinstance(method, ICaRL)
    for number in (1, 2):
        tests = {one.name: one.test for one in stream[:number]}
        report = learner.learn(stream[number - 1], tests=tests)
        assert report.evaluation is not None
        assert list(report.evaluation["after"]) == [other]
        assert report.work["test"] == 20 * number
    inputs = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        scores = method.outputs(inputs)
        features = nn.functional.normalize(method.backbone(inputs))
        head = method.head(method.backbone(inputs))
    nearest = torch.cdist(features, method.means).argmin(1)
    assert torch.equal((scores["final"] if classifier == "nme" else scores["nme"]).argmax(1), nearest)
    torch.testing.assert_close(scores["final"] if classifier == "head" else scores["head"], head)
    torch.testing.assert_close(method(inputs), scores["final"])
    own = sum(p.numel() for p in method.parameters())
    assert method.price().parameters == own + (method.means.numel() if classifier == "nme" else 0)


def test_all_means_follow_the_backbone(stream: Stream) -> None:
    learner = pupil("icarl", exemplars=3, lr_backbone=0.01)
    learner.learn(stream[0])
    method = learner.method
    assert isinstance(method, ICaRL)
    before = method.means
    learner.learn(stream[1])
    assert method.means.shape == (8, 64)
    assert not torch.allclose(method.means[:4], before)
    torch.testing.assert_close(method.means.norm(dim=1), torch.ones(8))
