"""What each of two processes does in ``test_spread.py``: layers compute, every method learns, the first process saves.

Run as ``torchrun --nproc_per_node 2 -m tests.engine.spread_worker FOLDER``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from timm.layers.drop import DropPath
from torch import Tensor, nn

from ductwork.data.domain import Domain
from ductwork.data.slices import bounds
from ductwork.engine.learner import Learner
from ductwork.engine.ranks import Ranks, join
from ductwork.engine.settings import EngineSettings
from ductwork.engine.whole import looks_around, whole_batch
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
    # the plain pipeline, whose draws leave no activation of the small ResNet where rounding decides on which side it is
    settings = EngineSettings(precision="fp32", accelerator="cpu", workers=0, eval_batch_size=8, cache=False)
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


def layers(ranks: Ranks) -> dict[str, Tensor]:
    """What layers that draw for a batch, or look at all of it, give on all ranks together."""
    torch.manual_seed(1)
    drawing = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), DropPath(0.5), nn.Dropout(0.3)]
    model = nn.Sequential(*drawing, nn.Flatten(), nn.Linear(4 * 6 * 6, 2))
    assert looks_around(model, alone=ranks.world == 1)
    found: dict[str, Tensor] = {}
    for total in (5, 1):  # of one image, the second rank has none
        batch = torch.randn(total, 3, 8, 8)
        start, size = bounds(total, ranks.rank, ranks.world)
        with whole_batch(ranks, batch[start : start + size], total, layers=True) as inputs:
            outputs = model(inputs)[:size]
        model.zero_grad()
        (outputs.square().sum() + 0.0 * sum(p.sum() for p in model.parameters())).backward()
        found[f"outputs.{total}"] = ranks.whole(outputs.detach(), total)
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            found[f"gradient.{name}.{total}"] = ranks.sum(parameter.grad)
    return found | {f"buffer.{name}": buffer.clone() for name, buffer in model.named_buffers()}


def main(folder: Path) -> None:
    ranks = join(EngineSettings(accelerator="cpu"))
    found = layers(ranks)
    if ranks.leads:
        save_file(found, folder / "layers.safetensors")
    for case in CASES:
        learner = learn(case)
        learner.save(folder / case)
        if ranks.leads:
            (folder / f"{case}.json").write_text(json.dumps(report(learner)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
