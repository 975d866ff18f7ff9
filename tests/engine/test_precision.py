"""Which precision is chosen, and that measuring it leaves no trace."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ductwork.backbones.weights import digest
from ductwork.engine import precision
from ductwork.engine.precision import bf16_gain, choose
from ductwork.engine.session import Session
from ductwork.engine.settings import EngineSettings
from ductwork.errors import CheckpointError
from tests.conftest import tiny_backbone


def test_what_is_asked_for_is_taken() -> None:
    assert choose("fp32", "cpu") == ("fp32", "as asked for")
    assert choose("bf16", "cpu") == ("bf16", "as asked for")


@pytest.mark.parametrize(("gain", "expected"), [(3.0, "bf16"), (1.31, "bf16"), (1.2, "fp32"), (0.4, "fp32")])
def test_the_probe_decides(gain: float, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "bf16_gain", lambda backbone: gain)
    chosen, reason = choose("auto", "cpu")
    assert chosen == expected
    assert f"{gain:.1f} times" in reason


@pytest.mark.parametrize("network", [None, "test_vit", "test_resnet"])
def test_the_probe_measures_and_leaves_no_trace(network: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_measured", {})
    backbone = tiny_backbone(network) if network else None
    torch.manual_seed(3)
    before = torch.get_rng_state()
    assert bf16_gain(backbone) > 0
    assert bf16_gain(backbone) == bf16_gain(backbone), "measured once"
    assert torch.equal(torch.get_rng_state(), before)
    if backbone is not None:
        assert digest(backbone.model.state_dict()) == backbone.sha256
        assert all(parameter.grad is None for parameter in backbone.parameters())


def test_runs_that_share_a_folder_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = tiny_backbone()
    for gain in (4.0, 0.5):  # the second one would measure differently
        monkeypatch.setattr(precision, "bf16_gain", lambda backbone, gain=gain: gain)
        assert choose("auto", "cpu", tmp_path, backbone)[0] == "bf16"
    assert choose("auto", "cpu", tmp_path, tiny_backbone("test_resnet"))[0] == "fp32", "another network"
    (tmp_path / "precision.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"precision\.json is damaged"):
        choose("auto", "cpu", tmp_path, backbone)


def test_a_session_records_its_choice() -> None:
    session = Session(EngineSettings(accelerator="cpu"))
    assert session.precision in ("fp32", "bf16")
    assert "probe" in session.precision_reason
    with session.frozen():
        product = torch.ones(4, 4) @ torch.ones(4, 4)
    assert product.dtype == (torch.bfloat16 if session.precision == "bf16" else torch.float32)
    assert not product.requires_grad
