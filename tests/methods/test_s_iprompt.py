"""S-iPrompt: domains that never see each other, and the choice between them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from ductwork.backbones import tokens as T
from ductwork.data.domain import Stream
from ductwork.engine.learner import Learner
from ductwork.errors import BackboneError
from ductwork.methods.registry import configure
from ductwork.methods.s_iprompt import SiPrompt, SiPromptConfig, _k_means, _Prompted
from tests.conftest import CLASSES, domain, tiny_backbone
from tests.methods.test_contract import assert_same_bits, learner, tensors


def method_of(pupil: Learner) -> SiPrompt:
    assert isinstance(pupil.method, SiPrompt)
    return pupil.method


@pytest.fixture
def inputs() -> Tensor:
    return torch.randn(9, 3, 32, 32, generator=torch.Generator().manual_seed(5))


@pytest.fixture
def pupil(stream: Stream) -> Learner:
    found = learner("s-iprompt")
    for one in stream:
        found.learn(one)
    return found


def test_what_a_domain_learned_never_changes(stream: Stream) -> None:
    pupil = learner("s-iprompt")
    kept: dict[str, Tensor] = {}
    for one in stream:
        pupil.learn(one)
        found = tensors(pupil.state())
        assert_same_bits(kept, {key: found[key] for key in kept})
        kept = {key: value.clone() for key, value in found.items()}
    assert_same_bits(dict(tiny_backbone().state_dict()), pupil.state().parts["backbone"])
    assert not any(p.requires_grad for p in pupil.method.parameters())


def test_one_domain_is_always_chosen(stream: Stream, inputs: Tensor) -> None:
    pupil = learner("s-iprompt")
    pupil.learn(stream[0])
    with torch.no_grad():
        assert method_of(pupil).choose(pupil.method.backbone(inputs)).tolist() == [0] * len(inputs)
        assert bool(pupil.method(inputs).isfinite().all())


def test_a_feature_that_is_a_center_chooses_its_domain(pupil: Learner) -> None:
    method = method_of(pupil)
    # features are put on the unit sphere before they are compared, so centres on the sphere are needed
    for centers in method.centers:
        centers.data.copy_(torch.nn.functional.normalize(centers, dim=1))
    for k, centers in enumerate(method.centers):
        assert method.choose(3.0 * centers).tolist() == [k] * len(centers)


def test_the_choice_is_by_the_sum_of_absolute_differences(pupil: Learner, inputs: Tensor) -> None:
    method = method_of(pupil)
    with torch.no_grad():
        features = method.backbone(inputs)
        f = torch.nn.functional.normalize(features, dim=1)
        expected = [int(torch.stack([(c - x).abs().sum(1).min() for c in method.centers]).argmin()) for x in f]
        assert method.choose(features).tolist() == expected


def test_prompts_do_not_take_part_in_the_choice(pupil: Learner, inputs: Tensor) -> None:
    method = method_of(pupil)
    with torch.no_grad():
        before = method(inputs).isfinite()
        for prompt in method.prompts:
            prompt.normal_()
        for block in method.head.blocks:
            block.normal_()
        assert torch.equal(method(inputs).isfinite(), before)


def test_each_image_is_seen_with_the_prompts_of_its_domain(pupil: Learner, inputs: Tensor) -> None:
    method = method_of(pupil)
    with torch.no_grad():
        # centres that lie on images make sure that all domains are chosen
        f = torch.nn.functional.normalize(method.backbone(inputs), dim=1)
        for k, centers in enumerate(method.centers):
            centers.copy_(f[k])
        scores = method(inputs)
        chosen = method.choose(method.backbone(inputs))
        assert set(chosen.tolist()) == {0, 1, 2}
        for image, k, found in zip(inputs, chosen.tolist(), scores, strict=True):
            features = _Prompted(method.backbone, method.prompts[k])(image[None])
            own = method.rows.span(k)
            torch.testing.assert_close(found[own], method.head(features, k)[0], rtol=1e-4, atol=1e-5)
            others = torch.cat([found[: own.start], found[own.stop :]])
            assert bool((others == float("-inf")).all())


def test_prompts_have_no_position_and_stand_behind_the_class_token(inputs: Tensor) -> None:
    backbone = tiny_backbone()
    tokens, prompt = T.embed(backbone, inputs), torch.randn(10, backbone.num_features)
    found = T.insert_prompts(backbone, tokens, prompt[None])
    assert torch.equal(found[:, 1:11], prompt.expand(len(inputs), -1, -1))
    assert torch.equal(found[:, :1], tokens[:, :1])


def test_training_leaves_the_backbone_in_evaluation_mode() -> None:
    model = _Prompted(tiny_backbone(), torch.zeros(1, 64))
    assert not model.train().backbone.training


def test_missing_classes_of_the_chosen_domain_have_no_score() -> None:
    pupil = learner("s-iprompt")
    pupil.learn(domain("day", ["east", "north"]))
    pupil.learn(domain("night", ["west"]))
    method = method_of(pupil)
    with torch.no_grad():
        rows = method(torch.randn(6, 3, 32, 32))
        finite = method.fold(rows).isfinite()
    assert {tuple(one) for one in finite.tolist()} <= {(True, True, False), (False, False, True)}


def test_fewer_images_than_clusters_and_equal_images() -> None:
    pupil = learner("s-iprompt")
    pupil.learn(domain("day", ["east", "north"], train=1))
    pupil.learn(domain("night", ["east"], train=7))
    assert [len(centers) for centers in method_of(pupil).centers] == [2, 5]
    with np.errstate(all="raise"):
        centers = _k_means(torch.ones(8, 3) / 3**0.5, SiPromptConfig())
    torch.testing.assert_close(centers, torch.full((5, 3), 3**-0.5))


def test_centers_depend_on_the_images_and_not_on_the_seed(stream: Stream) -> None:
    found = []
    for seed in (1, 2):
        pupil = learner("s-iprompt", seed=seed, epochs=0, cluster_view="test")
        pupil.learn(stream[0])
        found.append(method_of(pupil).centers[0])
    assert torch.equal(found[0], found[1])


def test_later_domains_have_their_own_settings() -> None:
    config = configure(SiPrompt, stream="cddb-hard")
    assert isinstance(config, SiPromptConfig)
    method = SiPrompt(config, tiny_backbone())
    first, later = method._config_of(1), method._config_of(2)
    assert (first.epochs, first.lr_backbone, first.lr_head, first.weight_decay) == (20, 1e-3, 1e-3, 5e-4)
    assert (later.epochs, later.lr_backbone, later.lr_head, later.weight_decay) == (50, 0.01, 0.01, 2e-4)
    for stream in ("domainnet", "domainnet-cil"):
        config = configure(SiPrompt, stream=stream)
        assert isinstance(config, SiPromptConfig)
        assert (config.epochs, config.lr_head) == (30, 0.01)


def test_size_of_the_state(stream: Stream) -> None:
    pupil = learner("s-iprompt")
    d = pupil.method.backbone.num_features
    backbone = sum(p.numel() for p in pupil.method.backbone.parameters())
    a_domain = 10 * d + len(CLASSES) * (d + 1) + 5 * d
    for b, one in enumerate(stream, start=1):
        pupil.learn(one)
        price = pupil.method.price()
        assert price.parameters == backbone + b * a_domain
        assert price.trainable_parameters == 10 * d + len(CLASSES) * (d + 1)
        assert price.inference_passes == 2
        learned = {k: v for k, v in tensors(pupil.state()).items() if not k.startswith("backbone/")}
        assert sum(v.numel() for v in learned.values()) == b * a_domain


def test_it_needs_a_vision_transformer() -> None:
    with pytest.raises(BackboneError, match="'s-iprompt' needs a Vision Transformer"):
        SiPrompt.check(tiny_backbone("test_resnet"))
