from __future__ import annotations

import threading
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ductwork.backbones.base import Backbone
from ductwork.backbones.tokens import (
    Adapter,
    Prefix,
    embed,
    finish,
    insert_prompts,
    pool,
    prompt_slice,
    require_vit,
    run_blocks,
)
from ductwork.errors import BackboneError, ShapeError
from tests.backbones.models import WIDTH, backward, images, small_vit

DEPTH = 3

VITS: dict[str, tuple[str, dict[str, Any]]] = {
    "augreg": ("vit_tiny_patch16_224", {}),
    "dino": ("vit_base_patch16_224.dino", {}),
    "deit": ("deit_tiny_patch16_224", {}),
    "distilled": ("deit_tiny_distilled_patch16_224", {}),
    "deit3": ("deit3_small_patch16_224", {}),
    "qk norm": ("vit_tiny_patch16_224", {"qk_norm": True}),
    "registers": ("vit_tiny_patch16_224", {"reg_tokens": 4, "no_embed_class": True, "init_values": 0.5}),
    "clip": ("vit_tiny_patch16_224", {"pre_norm": True}),
    "no positions": ("vit_tiny_patch16_224", {"pos_embed": "none"}),
    "other sizes": ("vit_tiny_patch16_224", {"dynamic_img_size": True}),
}


@pytest.fixture(params=VITS)
def backbone(request: pytest.FixtureRequest) -> Backbone:
    architecture, options = VITS[request.param]
    return small_vit(architecture, **options)


@pytest.fixture
def vit() -> Backbone:
    return small_vit()


def prefix(length: int, count: int = 1, seed: int = 3) -> Prefix:
    keys, values = torch.randn(2, count, length, WIDTH, generator=torch.Generator().manual_seed(seed))
    return keys, values


def reference_attention(attn: Any, tokens: Tensor, prefix: Prefix) -> Tensor:
    """Prefix attention from its formula, in float64 and one head at a time."""
    weight, bias = attn.qkv.weight.double(), attn.qkv.bias.double()
    q, k, v = (tokens.double() @ weight.T + bias).chunk(3, dim=-1)
    heads, size = attn.num_heads, WIDTH // attn.num_heads
    outputs = []
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        qh, kh = (norm(x[..., part].float()).double() for norm, x in ((attn.q_norm, q), (attn.k_norm, k)))
        pk, pv = (x[..., part].double().expand(len(tokens), -1, -1) for x in prefix)
        scores = qh @ torch.cat([pk, kh], dim=1).mT / size**0.5
        outputs.append(scores.softmax(-1) @ torch.cat([pv, v[..., part]], dim=1))
    attended = torch.cat(outputs, dim=-1)
    return F.linear(attended, attn.proj.weight.double(), attn.proj.bias.double())


class TestWhole:
    def test_the_four_steps_are_the_model_to_the_bit(self, backbone: Backbone) -> None:
        require_vit(backbone, "l2p")
        tokens = run_blocks(backbone, embed(backbone, images()))
        assert torch.equal(pool(backbone, finish(backbone, tokens)), backbone(images()))
        assert torch.equal(finish(backbone, tokens), backbone.model.forward_features(images()))

    @pytest.mark.parametrize("split", range(DEPTH + 1))
    def test_split_runs_are_the_whole_to_the_bit(self, vit: Backbone, split: int) -> None:
        tokens = embed(vit, images())
        halves = run_blocks(vit, run_blocks(vit, tokens, stop=split), start=split)
        assert torch.equal(halves, run_blocks(vit, tokens))

    def test_gradients_are_those_of_the_model(self, vit: Backbone) -> None:
        backward(vit(images()))
        expected = {name: p.grad for name, p in vit.named_parameters()}
        vit.zero_grad()
        backward(pool(vit, finish(vit, run_blocks(vit, embed(vit, images())))))
        for name, parameter in vit.named_parameters():
            assert parameter.grad is not None
            torch.testing.assert_close(parameter.grad, expected[name], rtol=0, atol=0)

    def test_gradient_checkpointing_is_respected(self, vit: Backbone) -> None:
        """Same numbers and gradients, and each block runs once more in the backward pass."""
        calls: list[int] = []
        vit.model.blocks[1].norm1.register_forward_pre_hook(lambda *_: calls.append(1))
        results = []
        for saving in (False, True):
            vit.model.set_grad_checkpointing(saving)
            keys = prefix(2)[0].requires_grad_()
            out = run_blocks(vit, embed(vit, images()), prefixes={1: (keys, keys)})
            backward(out)
            assert keys.grad is not None
            results.append((out.detach(), keys.grad))
        assert len(calls) == 3
        torch.testing.assert_close(results[0], results[1])

    def test_drop_path_and_dropout_follow_the_mode(self) -> None:
        vit = small_vit(drop_path_rate=0.5)
        tokens = embed(vit, images(8))
        vit.train()
        torch.manual_seed(0)
        dropped = run_blocks(vit, tokens, prefixes={2: prefix(1)})
        torch.manual_seed(0)
        assert torch.equal(dropped, run_blocks(vit, tokens, prefixes={2: prefix(1)}))
        vit.eval()
        assert not torch.equal(dropped, run_blocks(vit, tokens, prefixes={2: prefix(1)}))


class TestPrompts:
    def test_after_the_class_token_without_position(self, vit: Backbone) -> None:
        tokens, prompts = embed(vit, images()), torch.randn(1, 5, WIDTH)
        out = insert_prompts(vit, tokens, prompts)
        assert out.shape == (4, 1 + 5 + 16, WIDTH)
        assert torch.equal(out[:, :1], tokens[:, :1])
        assert torch.equal(out[:, 1:6], prompts.expand(4, -1, -1))
        assert torch.equal(out[:, 6:], tokens[:, 1:])

    def test_with_the_position_of_the_class_token(self, vit: Backbone) -> None:
        prompts = torch.randn(4, 5, WIDTH)
        out = insert_prompts(vit, embed(vit, images()), prompts, cls_pos=True)
        assert torch.equal(out[:, 1:6], prompts + vit.model.pos_embed[:, :1])

    def test_first(self, vit: Backbone) -> None:
        tokens, prompts = embed(vit, images()), torch.randn(4, 2, WIDTH)
        out = insert_prompts(vit, tokens, prompts, position="first")
        assert torch.equal(out, torch.cat([prompts, tokens], dim=1))
        features = pool(vit, out, skip=2)
        assert torch.equal(features, tokens[:, 0])

    def test_order_does_not_matter_to_attention(self, backbone: Backbone) -> None:
        """Both layouts hold the same set of tokens, so the class token gets the same answer."""
        tokens, prompts = embed(backbone, images()), torch.randn(1, 3, WIDTH)
        features = []
        for position, skip in (("after_cls", 0), ("first", 3)):
            out = run_blocks(backbone, insert_prompts(backbone, tokens, prompts, position=position))  # type: ignore[arg-type]
            features.append(pool(backbone, finish(backbone, out), skip=skip))
        torch.testing.assert_close(*features, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(features[0], backbone(images()), atol=1e-3)

    def test_all_special_tokens_stay_in_front(self) -> None:
        backbone = small_vit("deit_tiny_distilled_patch16_224")
        tokens = embed(backbone, images())
        out = insert_prompts(backbone, tokens, torch.zeros(1, 3, WIDTH))
        assert prompt_slice(backbone, 3) == slice(2, 5)
        assert torch.equal(out[:, :2], tokens[:, :2])
        assert prompt_slice(backbone, 3, "first") == slice(0, 3)

    def test_a_class_token_without_position_lends_none(self) -> None:
        backbone = small_vit("deit3_small_patch16_224")
        prompts = torch.randn(1, 3, WIDTH)
        out = insert_prompts(backbone, embed(backbone, images()), prompts, cls_pos=True)
        assert torch.equal(out[:, 1:4], prompts.expand(4, -1, -1))

    def test_none_at_all(self, vit: Backbone) -> None:
        tokens = embed(vit, images())
        assert torch.equal(insert_prompts(vit, tokens, torch.empty(1, 0, WIDTH)), tokens)

    @pytest.mark.parametrize("shape", [(3, 5, WIDTH), (1, 5, WIDTH + 1), (5, WIDTH)])
    def test_wrong_shapes(self, vit: Backbone, shape: tuple[int, ...]) -> None:
        with pytest.raises(ShapeError, match=r"prompts must be \[4 or 1, L, 48\]"):
            insert_prompts(vit, embed(vit, images()), torch.zeros(shape))

    def test_gradients_reach_prompts_of_a_frozen_backbone(self, vit: Backbone) -> None:
        vit.requires_grad_(False)
        prompts = torch.randn(1, 5, WIDTH, requires_grad=True)
        out = run_blocks(vit, insert_prompts(vit, embed(vit, images()), prompts))
        backward(pool(vit, finish(vit, out)))
        assert prompts.grad is not None
        assert bool((prompts.grad.abs().sum(-1) > 0).all())


class TestPrefixes:
    def test_none_at_all_is_plain_attention(self, backbone: Backbone) -> None:
        tokens = embed(backbone, images())
        empty = (torch.empty(1, 0, WIDTH), torch.empty(1, 0, WIDTH))
        out = run_blocks(backbone, tokens, prefixes=dict.fromkeys(range(DEPTH), empty))
        torch.testing.assert_close(out, run_blocks(backbone, tokens))

    @pytest.mark.parametrize("fused", [True, False])
    @pytest.mark.parametrize("qk_norm", [True, False])
    @pytest.mark.parametrize("count", [1, 4])
    def test_attention_equals_its_formula(self, fused: bool, qk_norm: bool, count: int) -> None:
        vit = small_vit(qk_norm=qk_norm)
        block = vit.model.blocks[1]
        block.attn.fused_attn = fused
        keys, values = prefix(5, count)
        with torch.no_grad():
            tokens = embed(vit, images())
            out = run_blocks(vit, tokens, start=1, stop=2, prefixes={1: (keys, values)})
            between = tokens + reference_attention(block.attn, block.norm1(tokens), (keys, values)).float()
            torch.testing.assert_close(out, between + block.mlp(block.norm2(between)), rtol=1e-4, atol=1e-4)

    def test_without_rows_it_is_plain_attention(self, vit: Backbone) -> None:
        tokens = embed(vit, images())
        assert torch.equal(run_blocks(vit, tokens, prefixes={0: prefix(0), 2: prefix(0)}), run_blocks(vit, tokens))

    def test_only_the_named_blocks_are_changed(self, vit: Backbone) -> None:
        tokens = embed(vit, images())
        out = run_blocks(vit, tokens, stop=1, prefixes={1: prefix(5)})
        assert torch.equal(out, run_blocks(vit, tokens, stop=1))
        assert not torch.equal(run_blocks(vit, tokens, prefixes={1: prefix(5)}), run_blocks(vit, tokens))

    def test_each_image_has_its_own(self, vit: Backbone) -> None:
        tokens, (keys, values) = embed(vit, images()), prefix(5, 4)
        together = run_blocks(vit, tokens, prefixes={0: (keys, values)})
        for index in range(4):
            one = slice(index, index + 1)
            alone = run_blocks(vit, tokens[one], prefixes={0: (keys[one], values[one])})
            torch.testing.assert_close(together[one], alone, rtol=1e-4, atol=1e-4)

    def test_gradients_equal_those_of_the_formula(self, vit: Backbone) -> None:
        vit.requires_grad_(False)
        tokens, attn = embed(vit, images()), vit.model.blocks[0].attn
        gradients = []
        for attend in (None, reference_attention):
            pair = tuple(part.clone().requires_grad_() for part in prefix(5))
            normed = vit.model.blocks[0].norm1(tokens)
            if attend is None:
                out = run_blocks(vit, tokens, stop=1, prefixes={0: (pair[0], pair[1])})
            else:
                between = tokens + attend(attn, normed, (pair[0], pair[1])).float()
                out = between + vit.model.blocks[0].mlp(vit.model.blocks[0].norm2(between))
            gradients.append(torch.autograd.grad(out.square().sum(), pair))
        torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-3, atol=1e-3)

    def test_under_autocast(self, vit: Backbone) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            out = run_blocks(vit, embed(vit, images()), prefixes={0: prefix(5)}, adapters={1: Adapter(WIDTH)})
        assert bool(out.isfinite().all())

    @pytest.mark.parametrize(
        "pair",
        [
            (torch.zeros(1, 5, WIDTH), torch.zeros(1, 4, WIDTH)),
            (torch.zeros(3, 5, WIDTH), torch.zeros(3, 5, WIDTH)),
            (torch.zeros(1, 5, 64), torch.zeros(1, 5, 64)),
            (torch.zeros(5, WIDTH), torch.zeros(5, WIDTH)),
        ],
    )
    def test_wrong_shapes(self, vit: Backbone, pair: Prefix) -> None:
        with pytest.raises(ShapeError, match=r"block 1 must both be \[4 or 1, L, 48\]"):
            run_blocks(vit, embed(vit, images()), prefixes={1: pair})

    def test_blocks_that_do_not_exist(self, vit: Backbone) -> None:
        with pytest.raises(ShapeError, match=r"prefixes are given for the blocks \[3, 7\].*blocks 0 to 2"):
            run_blocks(vit, embed(vit, images()), prefixes={7: prefix(1), 3: prefix(1)})


class TestAdapters:
    def awake(self) -> Adapter:
        adapter = Adapter(WIDTH, 16).eval()
        nn.init.normal_(adapter.up.weight)
        return adapter

    def test_an_untrained_adapter_changes_nothing(self, backbone: Backbone) -> None:
        tokens = embed(backbone, images())
        adapters = nn.ModuleList(Adapter(WIDTH) for _ in range(DEPTH))
        assert torch.equal(run_blocks(backbone, tokens, adapters=adapters), run_blocks(backbone, tokens))

    def test_it_runs_beside_the_mlp(self) -> None:
        vit, adapter = small_vit(init_values=0.5), self.awake()
        block, tokens = vit.model.blocks[2], embed(vit, images())
        out = run_blocks(vit, tokens, start=2, adapters={2: adapter})
        between = tokens + block.ls1(block.attn(block.norm1(tokens)))
        expected = between + block.ls2(block.mlp(block.norm2(between))) + adapter(between)
        torch.testing.assert_close(out, expected)

    def test_together_with_a_prefix(self, vit: Backbone) -> None:
        adapter, tokens = self.awake(), embed(vit, images())
        both = run_blocks(vit, tokens, stop=1, prefixes={0: prefix(3)}, adapters={0: adapter})
        seen: list[Tensor] = []
        handle = vit.model.blocks[0].norm2.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        alone = run_blocks(vit, tokens, stop=1, prefixes={0: prefix(3)})
        handle.remove()
        torch.testing.assert_close(both, alone + adapter(seen[0]))

    def test_a_list_and_a_mapping_mean_the_same(self, vit: Backbone) -> None:
        tokens, adapters = embed(vit, images()), [self.awake() for _ in range(DEPTH)]
        by_list = run_blocks(vit, tokens, adapters=adapters)
        assert torch.equal(by_list, run_blocks(vit, tokens, adapters=nn.ModuleList(adapters)))
        assert torch.equal(by_list, run_blocks(vit, tokens, adapters=dict(enumerate(adapters))))

    def test_gradients_reach_it_and_nothing_else(self, vit: Backbone) -> None:
        vit.requires_grad_(False)
        adapters = nn.ModuleList(self.awake() for _ in range(DEPTH))
        backward(run_blocks(vit, embed(vit, images()), adapters=adapters))
        assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in adapters.parameters())
        assert all(p.grad is None for p in vit.parameters())

    def test_too_few_for_the_blocks(self, vit: Backbone) -> None:
        with pytest.raises(ShapeError, match=r"one for each of the 3 blocks.*there are 2"):
            run_blocks(vit, embed(vit, images()), adapters=[self.awake(), self.awake()])

    def test_the_module_itself(self) -> None:
        adapter = Adapter(8, 4, dropout=0.5, scale=0.1)
        x = torch.randn(2, 3, 8)
        assert not adapter(x).any()
        assert sum(p.numel() for p in adapter.parameters()) == 8 * 4 + 4 + 4 * 8 + 8
        nn.init.ones_(adapter.up.weight)
        adapter.eval()
        expected = 0.1 * F.relu(x @ adapter.down.weight.T).sum(-1, keepdim=True).expand(-1, -1, 8)
        torch.testing.assert_close(adapter(x), expected)
        adapter.train()
        assert not torch.equal(adapter(x), adapter(x))
        assert float(adapter.down.weight.detach().abs().max()) <= 8**-0.5  # kaiming uniform with a = sqrt 5


class TestModelStaysAsItIs:
    def test_after_an_exception(self, vit: Backbone) -> None:
        class Broken(nn.Module):
            def forward(self, tokens: Tensor) -> Tensor:
                raise OSError("broken")

        before = vit(images())
        with pytest.raises(OSError, match="broken"):
            run_blocks(vit, embed(vit, images()), prefixes={0: prefix(5)}, adapters={1: Broken()})
        assert torch.equal(vit(images()), before)

    def test_state_and_attributes(self, vit: Backbone) -> None:
        keys, attributes = list(vit.state_dict()), {m: set(vars(m)) for m in vit.modules()}
        parts = {m: dict(m._modules) for m in vit.modules()}
        run_blocks(vit, embed(vit, images()), prefixes={0: prefix(5)}, adapters={0: Adapter(WIDTH)})
        assert list(vit.state_dict()) == keys
        assert {m: set(vars(m)) for m in vit.modules()} == attributes
        assert {m: dict(m._modules) for m in vit.modules()} == parts

    def test_threads_do_not_see_each_other(self, vit: Backbone) -> None:
        tokens = embed(vit, images()).detach()
        variants = [None, {0: prefix(5, seed=1)}, {0: prefix(3, seed=2), 1: prefix(3, seed=4)}]
        with torch.no_grad():
            expected = [run_blocks(vit, tokens, prefixes=variant) for variant in variants]
        wrong: list[int] = []

        def work(index: int) -> None:
            with torch.no_grad():
                for _ in range(10):
                    if not torch.equal(run_blocks(vit, tokens, prefixes=variants[index]), expected[index]):
                        wrong.append(index)

        threads = [threading.Thread(target=work, args=(index,)) for index in (0, 1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


def test_other_networks_are_refused_by_name_and_reason() -> None:
    resnet = Backbone(timm.create_model("test_resnet", num_classes=0), name="resnet101", timm_name="")
    with pytest.raises(BackboneError) as caught:
        require_vit(resnet, "coda-prompt")
    assert str(caught.value) == (
        "'coda-prompt' needs a Vision Transformer with a class token, and 'resnet101' cannot be used: it is timm's "
        "ResNet, not a plain VisionTransformer; use for instance 'vit-b16-in1k' or 'glyph_vit'"
    )
