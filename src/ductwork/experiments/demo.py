"""The main job on embedded data and an embedded backbone: nothing to download, nothing to edit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ductwork.experiments.grid import Grid
from ductwork.experiments.plan import Plan, make_plan
from ductwork.validation import validate

METHODS = ("finetune", "simplecil", "duct")


def demo(out: Path, *, methods: Sequence[str] = METHODS, order: str | None = None, seed: int = 1993) -> Plan:
    """``methods`` on the demo stream with the embedded backbone, as a grid with its runs below ``out``.

    ``order`` is the number of a predefined order, or names of domains separated by commas.
    """
    places = None if not order else [int(order)] if order.isdigit() else [order.split(",")]
    values = {
        "methods": list(methods),
        "orders": places,
        "seeds": [seed],
        # each method pays for all of its work; features of some test images show what moved
        "defaults": {"engine.shared": False, "engine.embedding": 12},
    }
    return make_plan(validate(Grid, values, "demo"), out, retry_failed=True)
