"""DUCT against its equations, and the ablations of the paper's Table 2 against each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ductwork import functional as F
from ductwork.backbones import registry as backbones
from ductwork.data.domain import Domain, Stream
from ductwork.data.loading import Loader
from ductwork.data.transforms import test_transform as plain_view
from ductwork.engine.learner import Learner
from ductwork.engine.settings import EngineSettings
from ductwork.errors import ConfigError
from ductwork.methods.duct import Duct
from ductwork.methods.registry import configure
from tests.conftest import domain, tiny_backbone

QUICK = {"epochs": 2, "batch_size": 16, "retrain_epochs": 2, "retrain_views": 2, "lr_backbone": 0.02}


def learn(domains: Sequence[Domain], recipe: str = "default", *, seed: int = 5, **params: Any) -> Learner:
    settings = EngineSettings(precision="fp32", workers=0, eval_batch_size=64)
    values = {**QUICK, **params}
    pupil = Learner("duct", backbone=tiny_backbone(), recipe=recipe, params=values, seed=seed, settings=settings)
    for number, one in enumerate(domains, start=1):
        pupil.learn(one, tests={d.name: d.test for d in domains[:number]})
    return pupil


def method(pupil: Learner) -> Duct:
    assert isinstance(pupil.method, Duct)
    return pupil.method


def rows(pupil: Learner) -> list[Tensor]:
    return [block.detach().clone() for block in method(pupil).head.blocks]


def same(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_without_transport_it_is_variation_3(stream: Stream) -> None:
    full, third = learn(stream, "paper", alpha_w=0), learn(stream, "variation-3")
    assert same(rows(full), rows(third))
    assert not same(rows(learn(stream, "paper")), rows(third))


def test_without_weight_the_plan_is_recorded_and_moves_nothing(stream: Stream) -> None:
    pupil = learn(stream[:2], "paper", alpha_w=0)
    assert pupil.reports[1].records["transport"]["day"]["plan"]
    assert same(rows(pupil)[:1], rows(learn(stream[:1], "paper")))


def test_with_a_similarity_of_one_variations_1_and_2_are_the_same(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = learn(stream, "variation-1"), learn(stream, "variation-2")
    assert not same(rows(first), rows(second))
    monkeypatch.setattr(F, "center_similarity", lambda before, after: 1.0)
    assert same(rows(first), rows(learn(stream, "variation-2")))


def test_the_baseline_is_simplecil(stream: Stream) -> None:
    baseline = learn(stream, "baseline", epochs=0, retrain_epochs=0)
    settings = EngineSettings(precision="fp32", workers=0, eval_batch_size=64)
    simple = Learner("simplecil", backbone=tiny_backbone(), settings=settings)
    for one in stream:
        simple.learn(one)
    assert torch.equal(torch.cat(rows(baseline)), torch.cat(list(simple.method.parts()["head"].values())[1:]).detach())


def merged_centers(pupil: Learner, one: Domain) -> Tensor:
    loader = Loader(one.train, plain_view(pupil.transform), batch_size=64, targets=one.targets, workers=0)
    (batch,) = loader.epoch()
    with torch.no_grad():
        return F.class_centers(pupil.method.backbone(batch.inputs), batch.targets, len(one.classes))


@pytest.mark.parametrize("recipe", ["variation-1", "variation-2"])
def test_variations_of_merging_compare_with_centres_of_merged_features(recipe: str, stream: Stream) -> None:
    pupil = learn(stream[:2], recipe)
    torch.testing.assert_close(rows(pupil)[-1], merged_centers(pupil, stream[1]))


def test_retraining_begins_at_the_centres_of_merged_features(stream: Stream) -> None:
    """Of length 1 and at the first temperature: what fine-tuning made of the rows does not matter any more."""
    pupil = learn(stream[:1], retrain_epochs=0, retrain_views=0)
    torch.testing.assert_close(rows(pupil)[0], nn.functional.normalize(merged_centers(pupil, stream[0])))
    assert method(pupil).head.scale.item() == 16.0


def merge_alone(order: Sequence[int], deltas: Sequence[dict[str, Tensor]], similarities: Sequence[float]) -> Duct:
    """Only the merging of stages whose fine-tuned backbones are given."""
    config = configure(Duct, "paper", params={"alpha_phi": 0.4})
    duct = Duct(config, tiny_backbone())  # type: ignore[arg-type]
    for k in order:
        tuned = {key: value + deltas[k].get(key, 0) for key, value in duct.pretrained.items()}
        duct.backbone.load_state_dict(tuned)
        duct._merge(_Records(similarities[k]))  # type: ignore[arg-type]
    return duct


class _Records:
    """All that merging asks of a stage: the record book."""

    def __init__(self, similarity: float) -> None:
        self.records: dict[str, Any] = {"similarity": similarity}


def test_the_order_of_domains_does_not_change_the_merged_backbone() -> None:
    base = tiny_backbone().state_dict()
    draw = torch.Generator().manual_seed(0)
    deltas = [{k: 0.01 * torch.randn(v.shape, generator=draw) for k, v in base.items()} for _ in range(4)]
    similarities = [0.9, 0.5, 0.7, 1.0]
    one, other = (merge_alone(order, deltas, similarities) for order in ((0, 1, 2, 3), (3, 1, 0, 2)))
    for key, value in one.merged.items():
        torch.testing.assert_close(value, other.merged[key], rtol=0, atol=1e-6)
        expected = base[key] + 0.4 * sum(s * d[key] for s, d in zip(similarities, deltas, strict=True))
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-6)


def test_the_backbone_stands_still_after_merging(stream: Stream) -> None:
    """Retraining and transport touch the classifier alone (Eq. 8 to 10)."""
    pupil = learn(stream[:2])
    again = learn(stream[:2], retrain="off", alpha_w=0)
    for key, value in method(pupil).merged.items():
        assert torch.equal(value, method(again).merged[key])


def test_transport_to_the_same_domain_gives_each_class_its_own_row() -> None:
    twice = (domain("day"), Domain("day again", domain("day").train, domain("day").test))
    pupil = learn(twice, alpha_w=1.0, ot_reg=0.01, ot_cost_scale="median", ot_scale="barycentric")
    old, new = rows(pupil)
    torch.testing.assert_close(old, new, rtol=1e-4, atol=1e-5)
    plan = np.array(pupil.reports[1].records["transport"]["day"]["plan"])
    np.testing.assert_allclose(plan * 4, np.eye(4), atol=1e-6)


def test_every_pass_over_the_images_is_made_once(stream: Stream) -> None:
    """One frozen pass for the centres of phi_0, ``epochs`` training passes, one for the centres of the fine-tuned
    backbone, one for each augmented view of retraining, and one over the test images."""
    pupil = learn(stream, epochs=3, retrain_views=2, retrain_epochs=4)
    for number, (one, report) in enumerate(zip(stream, pupil.reports, strict=True), start=1):
        n = len(one.train)
        assert report.work["frozen"] == (1 + 1 + 2) * n
        assert report.work["train"] == 3 * n
        assert report.work["test"] == sum(len(d.test) for d in stream[:number])
        assert report.work["decoded"] == sum(report.work[key] for key in ("frozen", "train", "test"))


def test_every_stage_records_what_it_did(stream: Stream) -> None:
    pupil = learn(stream)
    report = pupil.reports[-1]
    assert 0 < report.records["similarity"] <= 1
    assert report.records["task_vector_norm"] > 0
    assert list(report.records["task_vector_cosines"]) == [d.name for d in stream[:2]]
    assert all(-1 <= cosine <= 1 for cosine in report.records["task_vector_cosines"].values())
    assert list(report.records["transport"]) == [d.name for d in stream[:2]]
    for record in report.records["transport"].values():
        assert record["cost"] > 0 and record["entropy"] > 0 and record["marginal_error"] < 1e-9
        np.testing.assert_allclose(np.sum(record["plan"]), 1.0)
        assert record["from_classes"] == record["to_classes"] == list(stream.classes)
    assert report.evaluation is not None
    assert list(report.evaluation["after"]) == ["merge", "retrain", "transport"]
    assert report.evaluation["after"]["transport"] == report.evaluation["A_b"]


def test_the_fine_tuned_backbone_is_tested_on_request(stream: Stream) -> None:
    settings = EngineSettings(precision="fp32", workers=0, evaluate_phases=True)
    pupil = Learner("duct", backbone=tiny_backbone(), params=QUICK, settings=settings)
    report = pupil.learn(stream[0], tests={stream[0].name: stream[0].test})
    assert report.evaluation is not None
    assert set(report.evaluation["after"]) == {"finetune", "merge", "retrain", "transport"}
    assert report.work["test"] == 2 * len(stream[0].test)


@pytest.mark.parametrize("choice", ["frozen", "recalibrate", "merge"])
def test_batch_norm(choice: str, stream: Stream) -> None:
    torch.manual_seed(0)
    backbone = backbones.create("test_efficientnet", pretrained=False, input_size=64)
    means = {k: v.clone() for k, v in backbone.state_dict().items() if k.endswith("running_mean")}
    settings = EngineSettings(precision="fp32", workers=0)
    pupil = Learner("duct", backbone=backbone, params={**QUICK, "batch_norm": choice}, settings=settings)
    pupil.learn(stream[0])
    duct = method(pupil)
    changed = [key for key in means if not torch.equal(means[key], duct.merged[key])]
    assert bool(changed) == (choice != "frozen")
    assert all(torch.equal(duct.pretrained[key], means[key]) for key in means)
    assert all(
        torch.equal(value, duct.pretrained[key])
        for key, value in duct.merged.items()
        if not value.is_floating_point() and choice != "recalibrate"
    ), "an integer counter was merged"


def test_old_rows_decay_only_where_asked(stream: Stream) -> None:
    kept = learn(stream[:2], "paper", alpha_w=0)
    before = rows(learn(stream[:1], "paper", alpha_w=0))
    assert torch.equal(rows(kept)[0], before[0])
    decayed = rows(learn(stream[:2], "paper", alpha_w=0, decay_old_rows=True))[0]
    shrink = decayed.norm(dim=1) / before[0].norm(dim=1)
    assert bool((shrink < 1).all())
    cosine = nn.functional.cosine_similarity(decayed, before[0])
    torch.testing.assert_close(cosine, torch.ones_like(cosine), rtol=0, atol=1e-5)


def test_a_weight_without_a_plan_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"alpha_w = 0\.5 needs a plan, and ot_solver is off: use ot_solver=log"):
        configure(Duct, "variation-3", params={"alpha_w": 0.5})


def test_official_values_of_each_benchmark() -> None:
    def official(stream: str) -> dict[str, Any]:
        return configure(Duct, "official", stream).model_dump()

    assert official("cddb-hard")["alpha_phi"] == 0.5 and official("cddb-hard")["alpha_w"] == 0.5
    assert official("office-home")["alpha_phi"] == 0.25 and official("office-home")["ot_reg"] == 0.1
    assert official("core50")["epochs"] == 10 and official("core50")["lr_backbone"] == 1e-4
    assert official("domainnet")["ot_reg"] == 0.01
    assert official("photos")["schedule"] == "step-up" and not official("photos")["similarity"]
