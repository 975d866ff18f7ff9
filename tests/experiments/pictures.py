"""A folder of small pictures that can be learned in seconds, and grids on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

UNSTABLE = {"seconds", "peak_memory_bytes", "device", "bytes_written"}


def pictures(root: Path) -> Path:
    """Two domains of three classes: the class is the bright part, the domain the light."""
    draw = np.random.default_rng(0)
    for d, domain in enumerate(("bright", "dim")):
        for c, name in enumerate(("left", "right", "top")):
            folder = root / domain / name
            folder.mkdir(parents=True)
            for i in range(12):
                pixels = draw.integers(0, 90, (32, 32, 3))
                pixels[np.s_[:, :16] if c == 0 else np.s_[:, 16:] if c == 1 else np.s_[:16]] += 130 - 60 * d
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i}.png")
    return root


def stable(out: Path, *more: str) -> Any:
    """``result.json`` without what depends on the clock and the disk."""

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: strip(inner) for key, inner in value.items() if key not in UNSTABLE | {*more}}
        return [strip(inner) for inner in value] if isinstance(value, list) else value

    return strip(json.loads((out / "result.json").read_text()))


def weights(out: Path) -> Any:
    """Files of a checkpoint are named by their content."""
    return json.loads((out / "checkpoint" / "manifest.json").read_text())["objects"]
