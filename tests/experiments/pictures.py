"""A folder of small pictures that can be learned in seconds, and grids on it."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

# DUCT in seconds, all said, so that another recipe does not make it another run
QUICK_DUCT = {"epochs": 2, "batch_size": 8, "retrain_epochs": 5, "retrain_views": 2}
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


def epochs(out: Path) -> list[dict[str, Any]]:
    """``metrics.jsonl`` without the clock."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def wait_for_checkpoints(process: subprocess.Popen[Any], out: Path, count: int) -> bool:
    """Until a run has saved so many times; False if it ended before."""
    manifest, seen, last = out / "checkpoint" / "manifest.json", 0, 0
    while process.poll() is None:
        now = manifest.stat().st_mtime_ns if manifest.exists() else 0
        seen, last = (seen + 1, now) if now != last else (seen, last)
        if seen >= count:
            return True
        time.sleep(0.0005)
    return False
