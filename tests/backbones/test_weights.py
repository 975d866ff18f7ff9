from __future__ import annotations

import argparse
import hashlib
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from ductwork.backbones import weights
from ductwork.errors import BackboneError
from tests.backbones.models import WIDTH, small_vit

State = dict[str, Tensor]


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    """A network that has a classifier, as published ones have."""
    torch.manual_seed(5)
    return timm.create_model("test_vit", num_classes=9)


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(6)
    return timm.create_model("test_vit", num_classes=0)


def body(module: nn.Module) -> State:
    return {key: tensor for key, tensor in module.state_dict().items() if not key.startswith("head")}


def assert_loaded(model: nn.Module, expected: State) -> None:
    state = model.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[key], expected[key]) for key in expected)


def save_npz(content: State, path: Path) -> None:
    np.savez(path, allow_pickle=False, **{key: tensor.numpy() for key, tensor in content.items()})


@pytest.mark.parametrize(
    ("suffix", "save"),
    [
        (".safetensors", save_file),
        (".pth", torch.save),
        (".pt", torch.save),
        (".bin", lambda state, path: torch.save(state, path, _use_new_zipfile_serialization=False)),
        (".npz", save_npz),
    ],
)
def test_every_format(
    suffix: str, save: Callable[[State, Path], None], trained: nn.Module, model: nn.Module, tmp_path: Path
) -> None:
    path = tmp_path / f"weights{suffix}"
    save(dict(trained.state_dict()), path)
    weights.load(model, path)
    assert_loaded(model, body(trained))


WRAPPERS: dict[str, Callable[[State], Any]] = {
    "state_dict": lambda state: {"state_dict": state, "epoch": 3},
    "model": lambda state: {"model": state, "args": argparse.Namespace(lr=1.0), "optimizer": {"state": {}}},
    "nested": lambda state: {"model": {"state_dict": state}},
    "data parallel": lambda state: {f"module.{key}": tensor for key, tensor in state.items()},
    "compiled": lambda state: {f"_orig_mod.module.{key}": tensor for key, tensor in state.items()},
    "backbone": lambda state: {f"model.backbone.{key}": tensor for key, tensor in state.items()},
    "dino": lambda state: {
        "student": {"anything": torch.zeros(1)},
        "teacher": {f"module.backbone.{k}": t for k, t in state.items()} | {"module.head.mlp.0.weight": torch.ones(2)},
    },
    "averaged weights first": lambda state: {
        "state_dict": {key: tensor + 1 for key, tensor in state.items()},
        "state_dict_ema": state,
    },
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_containers_and_prefixes_are_taken_off(
    wrapper: str, trained: nn.Module, model: nn.Module, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint.pth"
    torch.save(WRAPPERS[wrapper](dict(trained.state_dict())), path)
    weights.load(model, path)
    assert_loaded(model, body(trained))


def test_half_precision_files_are_loaded_as_float32(trained: nn.Module, model: nn.Module, tmp_path: Path) -> None:
    halves = {key: tensor.half() for key, tensor in body(trained).items()}
    save_file(halves, tmp_path / "half.safetensors")
    weights.load(model, tmp_path / "half.safetensors")
    assert_loaded(model, {key: tensor.float() for key, tensor in halves.items()})


def test_position_embeddings_are_resized(tmp_path: Path) -> None:
    source, target = small_vit(img_size=64), small_vit()
    torch.save(source.model.state_dict(), tmp_path / "large.pth")
    with torch.no_grad():
        target.model.cls_token.zero_()
    weights.load(target.model, tmp_path / "large.pth")
    assert torch.equal(target.model.cls_token, source.model.cls_token)
    assert target.model.pos_embed.shape == (1, 17, WIDTH)


def test_old_files_without_batch_counters(tmp_path: Path) -> None:
    source, target = (timm.create_model("test_resnet", num_classes=0) for _ in range(2))
    state = {key: t for key, t in source.state_dict().items() if not key.endswith("num_batches_tracked")}
    torch.save(state, tmp_path / "old.pth")
    weights.load(target, tmp_path / "old.pth")
    assert_loaded(target, source.state_dict())


def test_deit3_layer_scale_names(tmp_path: Path) -> None:
    source, target = (small_vit("deit3_small_patch16_224") for _ in range(2))
    state = {
        key.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2"): tensor + 1
        for key, tensor in source.model.state_dict().items()
    }
    torch.save(state, tmp_path / "deit3.pth")
    weights.load(target.model, tmp_path / "deit3.pth")
    assert_loaded(target.model, {key: tensor + 1 for key, tensor in source.model.state_dict().items()})


def jax_state(model: Any) -> dict[str, np.ndarray[Any, Any]]:
    """``model`` under the names and in the layouts of the original ViT checkpoints."""
    width, heads = model.embed_dim, model.blocks[0].attn.num_heads
    out = {
        "cls": model.cls_token,
        "embedding/kernel": model.patch_embed.proj.weight.permute(2, 3, 1, 0),
        "embedding/bias": model.patch_embed.proj.bias,
        "Transformer/posembed_input/pos_embedding": model.pos_embed,
        "Transformer/encoder_norm/scale": model.norm.weight,
        "Transformer/encoder_norm/bias": model.norm.bias,
    }
    for index, block in enumerate(model.blocks):
        at = f"Transformer/encoderblock_{index}/"
        for name, norm in (("LayerNorm_0", block.norm1), ("LayerNorm_2", block.norm2)):
            out |= {f"{at}{name}/scale": norm.weight, f"{at}{name}/bias": norm.bias}
        mha = f"{at}MultiHeadDotProductAttention_1/"
        parts = zip(block.attn.qkv.weight.chunk(3), block.attn.qkv.bias.chunk(3), strict=True)
        for name, (weight, bias) in zip(("query", "key", "value"), parts, strict=True):
            out |= {
                f"{mha}{name}/kernel": weight.T.reshape(width, heads, -1),
                f"{mha}{name}/bias": bias.view(heads, -1),
            }
        out[f"{mha}out/kernel"] = block.attn.proj.weight.T.reshape(heads, -1, width)
        out[f"{mha}out/bias"] = block.attn.proj.bias
        for name, dense in (("Dense_0", block.mlp.fc1), ("Dense_1", block.mlp.fc2)):
            out |= {f"{at}MlpBlock_3/{name}/kernel": dense.weight.T, f"{at}MlpBlock_3/{name}/bias": dense.bias}
    return {key: tensor.detach().numpy() for key, tensor in out.items()}


def test_original_jax_weights(tmp_path: Path) -> None:
    source, target = small_vit(), small_vit()
    np.savez(tmp_path / "jax.npz", **jax_state(source.model))  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in target.parameters():
            parameter.zero_()
    weights.load(target.model, tmp_path / "jax.npz")
    assert_loaded(target.model, source.model.state_dict())


@pytest.mark.parametrize("depth", [2, 4])
def test_jax_weights_of_another_depth(depth: int, tmp_path: Path) -> None:
    np.savez(tmp_path / "jax.npz", **jax_state(small_vit().model))  # type: ignore[arg-type]
    with pytest.raises(BackboneError, match=f"3 blocks and the model {depth}"):
        weights.load(small_vit(depth=depth).model, tmp_path / "jax.npz")


def test_jax_weights_of_another_width(tmp_path: Path) -> None:
    np.savez(tmp_path / "jax.npz", **jax_state(small_vit().model))  # type: ignore[arg-type]
    with pytest.raises(BackboneError, match="does not fit VisionTransformer"):
        weights.load(small_vit(embed_dim=2 * WIDTH).model, tmp_path / "jax.npz")


def test_jax_weights_for_a_model_that_cannot_read_them(tmp_path: Path) -> None:
    np.savez(tmp_path / "jax.npz", **jax_state(small_vit().model))  # type: ignore[arg-type]
    with pytest.raises(BackboneError, match="layout of JAX"):
        weights.load(timm.create_model("test_resnet", num_classes=0), tmp_path / "jax.npz")


class TestMisfits:
    def refused(self, model: nn.Module, state: State, tmp_path: Path, match: str) -> None:
        before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
        torch.save(state, tmp_path / "misfit.pth")
        with pytest.raises(BackboneError, match=match) as caught:
            weights.load(model, tmp_path / "misfit.pth")
        assert "\n" not in str(caught.value)
        assert_loaded(model, before)

    def test_missing(self, trained: nn.Module, model: nn.Module, tmp_path: Path) -> None:
        state = {key: tensor for key, tensor in body(trained).items() if ".norm" not in key}
        message = (
            r"misfit.pth does not fit test_vit: \d+ missing: blocks.0.norm1.bias, blocks.0.norm1.weight, .*, \.\.\."
        )
        self.refused(model, state, tmp_path, message)

    def test_unexpected(self, trained: nn.Module, model: nn.Module, tmp_path: Path) -> None:
        self.refused(model, body(trained) | {"neck.weight": torch.ones(1)}, tmp_path, "1 unexpected: neck.weight$")

    def test_other_shape(self, trained: nn.Module, model: nn.Module, tmp_path: Path) -> None:
        state = body(trained) | {"norm.weight": torch.ones(3)}
        self.refused(model, state, tmp_path, r"1 of another shape: norm.weight \(3,\) instead of \(64,\)$")

    def test_not_finite(self, trained: nn.Module, model: nn.Module, tmp_path: Path) -> None:
        state = body(trained) | {"norm.weight": torch.full((64,), torch.nan)}
        self.refused(model, state, tmp_path, "1 not finite: norm.weight$")

    def test_another_network_altogether(self, model: nn.Module, tmp_path: Path) -> None:
        state = timm.create_model("test_resnet", num_classes=0).state_dict()
        self.refused(model, state, tmp_path, r"\d+ missing: .*; \d+ unexpected: ")


class Malicious:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("suffix", [".pth", ".bin"])
@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_pickle_is_refused_and_not_run(suffix: str, zipped: bool, tmp_path: Path) -> None:
    path, trace = tmp_path / f"evil{suffix}", tmp_path / "ran"
    torch.save({"state_dict": Malicious(trace)}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(BackboneError, match="is refused: it holds Python objects") as caught:
        weights.read(path)
    assert "\n" not in str(caught.value)
    assert not trace.exists()
    torch.load(path, weights_only=False)  # the same file does run code where it is trusted
    assert trace.exists()


def test_code_in_a_bare_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    (tmp_path / "evil.pth").write_bytes(pickle.dumps(Malicious(trace), protocol=2))
    with pytest.raises(BackboneError, match="is refused"):
        weights.read(tmp_path / "evil.pth")
    assert not trace.exists()


def test_objects_in_an_npz_are_refused(tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    np.savez(tmp_path / "evil.npz", weight=np.array([Malicious(trace)], dtype=object))
    with pytest.raises(BackboneError, match=r"cannot be read as \.npz weights"):
        weights.read(tmp_path / "evil.npz")
    assert not trace.exists()


@pytest.mark.parametrize("suffix", weights.SUFFIXES)
@pytest.mark.parametrize("content", [b"", b"not weights at all", b"PK\x03\x04 broken"])
def test_damaged_files(suffix: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / f"bad{suffix}").write_bytes(content)
    with pytest.raises(BackboneError, match=f"bad{suffix} (cannot be read as|is refused)") as caught:
        weights.read(tmp_path / f"bad{suffix}")
    assert "\n" not in str(caught.value)


def test_truncated_files(trained: nn.Module, tmp_path: Path) -> None:
    for name, save in (("cut.pth", torch.save), ("cut.safetensors", save_file)):
        path = tmp_path / name
        save(dict(trained.state_dict()), path)
        path.write_bytes(path.read_bytes()[:-1000])
        with pytest.raises(BackboneError, match=f"{name} cannot be read"):
            weights.read(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [({"epoch": 3, "lr": 0.1}, "no named tensors, only epoch, lr"), ({}, "only nothing"), ([1, 2], "holds a list")],
)
def test_files_without_weights(content: Any, message: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "empty.pth")
    with pytest.raises(BackboneError, match=message):
        weights.read(tmp_path / "empty.pth")


def test_absent_files_and_unknown_types(tmp_path: Path) -> None:
    with pytest.raises(BackboneError, match="there is no weights file"):
        weights.read(tmp_path / "nothing.pth")
    with pytest.raises(BackboneError, match=r"unknown type of weights: use one of \.safetensors, \.pth"):
        weights.read(tmp_path / "weights.ckpt")
    (tmp_path / "folder.pth").mkdir()
    with pytest.raises(BackboneError, match="there is no weights file"):
        weights.read(tmp_path / "folder.pth")


class TestDigest:
    state: ClassVar[State] = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(3), "c": torch.empty(0)}

    def test_is_a_fixed_function_of_the_content(self) -> None:
        parts = (
            b"a torch.float32 (2, 3)\n" + struct.pack("<6f", 0, 1, 2, 3, 4, 5),
            b"b torch.int64 ()\n" + struct.pack("<q", 3),
            b"c torch.float32 (0,)\n",
        )
        assert weights.digest(self.state) == hashlib.sha256(b"".join(parts)).hexdigest()

    def test_does_not_depend_on_order_or_memory_layout(self) -> None:
        transposed = {"c": self.state["c"], "b": self.state["b"], "a": self.state["a"].T.contiguous().T}
        assert weights.digest(transposed) == weights.digest(self.state)

    @pytest.mark.parametrize(
        "change",
        [
            {"a": torch.arange(6.0).reshape(3, 2)},
            {"a": torch.arange(6.0).reshape(2, 3).nextafter(torch.tensor(9.0))},
            {"b": torch.tensor(3, dtype=torch.int32)},
            {"d": torch.empty(0)},
        ],
        ids=["shape", "value", "dtype", "name"],
    )
    def test_sees_shape_value_dtype_and_name(self, change: State) -> None:
        assert weights.digest(self.state | change) != weights.digest(self.state)

    def test_takes_every_dtype(self) -> None:
        for dtype in (torch.bfloat16, torch.float16, torch.bool, torch.uint8, torch.complex64):
            assert len(weights.digest({"x": torch.ones(2, dtype=dtype)})) == 64
