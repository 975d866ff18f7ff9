"""Which precision is chosen, and that measuring it leaves no trace."""

from __future__ import annotations

import pytest
import torch

from ductwork.engine import precision
from ductwork.engine.precision import bf16_gain, choose
from ductwork.engine.session import Session
from ductwork.engine.settings import EngineSettings


def test_what_is_asked_for_is_taken() -> None:
    assert choose("fp32", "cpu") == ("fp32", "as asked for")
    assert choose("bf16", "cpu") == ("bf16", "as asked for")


@pytest.mark.parametrize(("gain", "expected"), [(3.0, "bf16"), (1.31, "bf16"), (1.2, "fp32"), (0.4, "fp32")])
def test_the_probe_decides(gain: float, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "bf16_gain", lambda: gain)
    chosen, reason = choose("auto", "cpu")
    assert chosen == expected
    assert f"{gain:.1f} times" in reason


def test_the_probe_measures_and_draws_nothing() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    bf16_gain.cache_clear()
    assert bf16_gain() > 0
    assert torch.equal(torch.get_rng_state(), before)


def test_a_session_records_its_choice() -> None:
    session = Session(EngineSettings(accelerator="cpu"))
    assert session.precision in ("fp32", "bf16")
    assert "probe" in session.precision_reason
    with session.frozen():
        product = torch.ones(4, 4) @ torch.ones(4, 4)
    assert product.dtype == (torch.bfloat16 if session.precision == "bf16" else torch.float32)
    assert not product.requires_grad
