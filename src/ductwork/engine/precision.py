"""Which precision to compute in, decided by training the network itself for a moment."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Literal

import torch
from filelock import FileLock
from torch import nn

from ductwork.backbones.base import Backbone
from ductwork.engine.checkpoint import write_atomically
from ductwork.errors import CheckpointError

Precision = Literal["fp32", "bf16", "fp16"]

FABRIC = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
WORTH_IT = 1.3  # below this gain the exact numbers are worth more than the time


_PIXELS = 64 * 64 * 16  # in a batch of the probe: enough for kernels to count, few enough to be quick
_measured: dict[tuple[str, int], float] = {}


def bf16_gain(backbone: Backbone | None = None) -> float:
    """How many times faster a network trains on this processor under bf16 autocast than in fp32.

    That is ``backbone``, for kernels differ: convolutions in groups may lose by what matrix products gain. Without one
    it is a layer of a transformer. Each is measured once.
    """
    key = (backbone.timm_name, backbone.input_size) if backbone else ("", 0)
    if key not in _measured:
        network, inputs = (backbone, _images(backbone)) if backbone else (_layer(), torch.empty(1024, 384))
        state, training = torch.get_rng_state(), network.training
        try:
            network.eval()  # nothing but the weights decides, and running statistics stand still
            inputs.normal_()
            _measured[key] = _seconds(network, inputs, False) / _seconds(network, inputs, True)
        finally:
            torch.set_rng_state(state)
            network.train(training).zero_grad(set_to_none=True)
    return _measured[key]


def _layer() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        return nn.Sequential(nn.Linear(384, 1536), nn.GELU(), nn.Linear(1536, 384))


def _images(backbone: Backbone) -> torch.Tensor:
    side = backbone.input_size
    return torch.empty(max(2, _PIXELS // side**2), 3, side, side)


def _seconds(network: nn.Module, inputs: torch.Tensor, reduced: bool) -> float:
    # the least of several: other programs can only make a measurement longer
    times = []
    for _ in range(4):
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=reduced):
            network(inputs).sum().backward()
        times.append(time.perf_counter() - start)
    return min(times[1:])


def choose(
    wanted: str, device: str, shared: Path | Literal[False] | None = None, backbone: Backbone | None = None
) -> tuple[Precision, str]:
    """The precision to use on a kind of device, and why. Runs that share a folder share what the probe found."""
    if wanted != "auto":
        return wanted, "as asked for"  # type: ignore[return-value]
    if device == "cuda":
        good = torch.cuda.is_bf16_supported(including_emulation=False)
        return ("bf16", "the device computes in bf16") if good else ("fp32", "the device has no bf16")
    if device == "cpu":
        gain = _agreed_gain(shared, backbone) if shared else bf16_gain(backbone)
        return ("bf16" if gain >= WORTH_IT else "fp32"), f"a probe trains {gain:.1f} times as fast in bf16"
    return "fp32", "no faster precision is known to be safe here"


def _agreed_gain(shared: Path, backbone: Backbone | None) -> float:
    """What the first of several runs has measured: runs that are compared must not differ in their precision."""
    path = shared / "precision.json"
    name = f"{backbone.timm_name} at {backbone.input_size}" if backbone else "a layer"
    shared.mkdir(parents=True, exist_ok=True)
    with FileLock(shared / ".precision.lock"):
        try:
            gains = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
            if name not in gains:
                gains[name] = bf16_gain(backbone)
                write_atomically(path, json.dumps(gains, indent=1).encode())
            return float(gains[name])
        except (ValueError, TypeError):
            raise CheckpointError(f"{path} is damaged; delete it to measure again") from None
