"""Which precision to compute in, decided by a measurement that takes a fraction of a second."""

from __future__ import annotations

import json
import time
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from filelock import FileLock

from ductwork.engine.checkpoint import write_atomically
from ductwork.errors import CheckpointError

Precision = Literal["fp32", "bf16", "fp16"]

FABRIC = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
WORTH_IT = 1.3  # below this gain the exact numbers are worth more than the time


@cache
def bf16_gain() -> float:
    """How many times faster a small network trains on this processor under bf16 autocast than in fp32."""
    state = torch.get_rng_state()
    try:
        # a shape typical of a transformer's MLP, large enough for kernels to count and small enough to be quick
        layer = torch.nn.Sequential(torch.nn.Linear(384, 1536), torch.nn.GELU(), torch.nn.Linear(1536, 384))
        inputs = torch.randn(1024, 384)
        return _seconds(layer, inputs, False) / _seconds(layer, inputs, True)
    finally:
        torch.set_rng_state(state)


def _seconds(layer: torch.nn.Module, inputs: torch.Tensor, reduced: bool) -> float:
    # the least of several: other programs can only make a measurement longer
    times = []
    for _ in range(6):
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=reduced):
            layer(inputs).sum().backward()
        times.append(time.perf_counter() - start)
    return min(times[1:])


def choose(wanted: str, device: str, shared: Path | Literal[False] | None = None) -> tuple[Precision, str]:
    """The precision to use on a kind of device, and why. Runs that share a folder share what the probe found."""
    if wanted != "auto":
        return wanted, "as asked for"  # type: ignore[return-value]
    if device == "cuda":
        good = torch.cuda.is_bf16_supported(including_emulation=False)
        return ("bf16", "the device computes in bf16") if good else ("fp32", "the device has no bf16")
    if device == "cpu":
        gain = _agreed_gain(shared) if shared else bf16_gain()
        return ("bf16" if gain >= WORTH_IT else "fp32"), f"a probe trains {gain:.1f} times as fast in bf16"
    return "fp32", "no faster precision is known to be safe here"


def _agreed_gain(shared: Path) -> float:
    """What the first of several runs has measured: runs that are compared must not differ in their precision."""
    path = shared / "precision.json"
    shared.mkdir(parents=True, exist_ok=True)
    with FileLock(shared / ".precision.lock"):
        if not path.exists():
            write_atomically(path, json.dumps({"bf16_gain": bf16_gain()}).encode())
        try:
            return float(json.loads(path.read_text(encoding="utf-8"))["bf16_gain"])
        except (ValueError, KeyError, TypeError):
            raise CheckpointError(f"{path} is damaged; delete it to measure again") from None
