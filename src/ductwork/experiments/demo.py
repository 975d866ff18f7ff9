"""The main job on embedded data and an embedded backbone: nothing to download, nothing to edit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ductwork.engine.progress import Progress
from ductwork.experiments.config import RunConfig
from ductwork.experiments.results import RunResult
from ductwork.experiments.run import run
from ductwork.methods import registry
from ductwork.validation import validate

METHODS = ("finetune", "simplecil", "duct")


def demo(
    out: Path,
    *,
    methods: Sequence[str] = METHODS,
    order: str | None = None,
    seed: int = 1993,
    progress: Progress | None = None,
) -> list[RunResult]:
    """Run ``methods`` on the demo stream with the embedded backbone, each in a folder of its own below ``out``."""
    for name in methods:
        registry.find(name)
    places = int(order) if order and order.isdigit() else order.split(",") if order else None
    values = {"stream": "demo", "order": places, "seed": seed}
    configs = [validate(RunConfig, {**values, "method": name}, "demo") for name in methods]
    results = []
    for config in configs:
        if progress is not None:
            progress.say(f"{config.method}: {registry.find(config.method).summary}")
        results.append(run(config, out / config.name(), progress=progress))
    return results
