"""What each of two processes does in ``test_spread.py``: every method that was asked for learns, the first one saves.

Run as ``torchrun --nproc_per_node 2 -m tests.engine.spread_worker FOLDER METHOD...``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ductwork.data.domain import Domain
from ductwork.engine.learner import Learner
from ductwork.engine.settings import EngineSettings
from ductwork.methods.registry import methods
from tests.conftest import domain, tiny_backbone

# 19 training images in batches of 6, 17 test images in batches of 8: the last batch is one image, which one rank lacks
QUICK: dict[str, Any] = {"epochs": 2, "batch_size": 6, "retrain_epochs": 2, "retrain_views": 2, "projection": 100}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    **{name: (name, "test_vit", {}) for name in methods()},
    "duct-official": ("duct", "test_vit", {"decay_old_rows": True, "accumulate": 2, "clip_norm": 0.5}),
    # with batch normalisation no batch may consist of one image, whatever the number of processes
    "duct-recalibrate": ("duct", "test_resnet", {"batch_norm": "recalibrate", "batch_size": 5}),
    "duct-merge": ("duct", "test_resnet", {"batch_norm": "merge", "batch_size": 5}),
    "finetune-batch-norm": ("finetune", "test_resnet", {"batch_size": 5}),
    "l2p-official": ("l2p", "test_vit", {"batchwise": "always"}),
    "dualprompt-official": ("dualprompt", "test_vit", {"batchwise_at_test": True}),
    "ranpac-phase-1": ("ranpac", "test_vit", {"first_phase": True}),
    "joint-every-stage": ("joint", "test_vit", {"last_only": False}),
    "icarl-nme": ("icarl", "test_vit", {"classifier": "nme"}),
}
"""Every registered method, and the options that look at a batch as a whole: method, backbone, parameters."""


def learn(case: str) -> Learner:
    method, backbone, params = CASES[case]
    fields = methods()[method].Config.model_fields
    values = {key: value for key, value in QUICK.items() if key in fields} | params
    settings = EngineSettings(precision="fp32", accelerator="cpu", workers=0, eval_batch_size=8)
    learner = Learner(method, backbone=tiny_backbone(backbone), params=values, seed=7, settings=settings)
    day, night = domain("day", train=5, test=5), domain("night", ["east", "frame", "north"], train=5, test=5, seed=3)
    domains = [Domain("day", day.train.subset(range(19)), day.test.subset(range(17))), night]
    tests = {}
    for number, one in enumerate(domains, start=1):
        tests[one.name] = one.test
        learner.learn(one, tests=tests, remaining=len(domains) - number)
    return learner


def report(learner: Learner) -> list[dict[str, Any]]:
    return [{**vars(one), "seconds": sorted(one.seconds)} for one in learner.reports]


def main(folder: str, cases: Sequence[str]) -> None:
    for case in cases:
        learner = learn(case)
        learner.save(Path(folder) / case)
        if learner.session.ranks.leads:
            (Path(folder) / f"{case}.json").write_text(json.dumps(report(learner)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:] or list(CASES))
