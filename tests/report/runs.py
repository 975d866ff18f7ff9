"""Run folders that look like real ones: methods that forget, keep or never adapt, in several orders and seeds."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# How well each method learns a new domain, how much it loses of each old one a stage, and its price.
METHODS: dict[str, tuple[float, float, float, int]] = {
    "duct": (90.0, 0.3, 1.0, 2),
    "finetune": (92.0, 8.0, 1.0, 1),
    "simplecil": (76.0, 0.1, 1.0, 1),
    "replay": (91.0, 4.2, 1.0, 1),
    "icarl": (89.0, 4.0, 1.0, 2),
    "memo": (88.0, 3.1, 1.4, 2),
    "l2p": (83.0, 1.9, 2.0, 1),
    "dualprompt": (84.0, 1.6, 2.0, 1),
    "coda-prompt": (85.5, 1.4, 2.0, 1),
    "s-iprompt": (84.5, 0.8, 2.0, 1),
    "ease": (86.0, 0.7, 4.0, 1),
    "ranpac": (87.5, 0.4, 1.0, 1),
}
DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def write_run(
    folder: Path,
    method: str = "duct",
    domains: Sequence[str] = ("print", "pen", "street", "sketch"),
    seed: int = 1,
    classes: Sequence[str] = DIGITS,
    status: str = "done",
    stages: int | None = None,
    own_tests: Sequence[str] = (),
    plans: bool = True,
    epochs: int = 8,
    **more: Any,
) -> dict[str, Any]:
    """Write one run folder and return what its ``result.json`` holds."""
    dice = random.Random(f"{method}-{seed}-{domains}")
    learn, lose, passes, copies = METHODS.get(method, (80.0, 2.0, 1.0, 1))
    count = len(domains) if stages is None else stages
    records = _stages(dice, method, domains[:count], learn, lose, classes, own_tests, plans)
    curve = [record["A_b"] for record in records]
    matrix = [record["accuracy"] for record in records]
    done = status == "done"
    result: dict[str, Any] = {
        "format": 1,
        "method": method,
        "recipe": "default",
        "params": {"alpha_phi": 0.3, "epochs": epochs},
        "stream": "digits",
        "order": list(domains),
        "seed": seed,
        "backbone": {"name": "tiny_vit_patch4_32", "sha256": "5f" * 32, "parameters": 1_400_000},
        "data": {"fingerprint": "d1" * 16, "classes": len(classes)},
        "stages": records,
        "A_bar": math.fsum(curve) / len(curve) if done else None,
        "A_B": curve[-1] if done else None,
        "forgetting": _forgetting(matrix, 0) if done and not own_tests else None,
        "forgetting_chaudhry": _forgetting(matrix, 1) if done and not own_tests else None,
        "bwt": -_forgetting(matrix, 0) * 0.97 if done and not own_tests else None,
        "fwt": 0.0,
        "price": {
            "parameters": 1_400_000 + 77_000 * copies,
            "trainable_parameters": 0 if method == "simplecil" else 1_400_000,
            "state_bytes": 5_600_000 * copies + 7_680 * count,
            "inference_passes": passes,
        },
        "versions": {"ductwork": "0.1.0", "torch": "2.9.0", "timm": "1.0.22"},
        "device": "cpu",
        "precision": "fp32",
        "seconds": math.fsum(math.fsum(r["seconds"].values()) for r in records) + 1.5,
        "peak_memory_bytes": 812_000_000,
        "status": status,
        "reason": None if done else {"failed": "the loss is not finite at stage 2, epoch 3"}.get(status),
        **more,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    _write_metrics(folder, dice, method, domains[:count], epochs)
    return result


def _stages(
    dice: random.Random,
    method: str,
    domains: Sequence[str],
    learn: float,
    lose: float,
    classes: Sequence[str],
    own_tests: Sequence[str],
    plans: bool,
) -> list[dict[str, Any]]:
    hard = {name: random.Random(name).uniform(-9, 6) for name in [*domains, *own_tests]}
    sizes = {name: random.Random(name).randrange(150, 400) for name in [*domains, *own_tests]}
    known: dict[str, float] = {}
    records = []
    for i, domain in enumerate(domains):
        for name in known:
            known[name] = max(12.0, known[name] - lose * dice.uniform(0.5, 1.6))
        known[domain] = min(99.5, learn + hard[domain] + dice.uniform(-1.5, 1.5))
        tested = {n: known[domain] * (0.7 + 0.3 * (i + 1) / len(domains)) - 2 for n in own_tests} or dict(known)
        size = {name: sizes[name] for name in tested}
        a_b = sum(tested[n] * size[n] for n in tested) / sum(size.values())
        records.append(
            {
                "domain": domain,
                "accuracy": tested,
                "A_b": a_b,
                "n_test": size,
                "n_train": 1200,
                "classes": len(classes),
                **_inside(dice, method, domains[:i], a_b, classes, plans),
            }
        )
    return records


def _inside(
    dice: random.Random, method: str, earlier: Sequence[str], a_b: float, classes: Sequence[str], plans: bool
) -> dict[str, Any]:
    train = 0 if method == "simplecil" else 9600
    seconds = {"centers": dice.uniform(0.5, 0.8), "evaluate": 0.3 * (len(earlier) + 1)}
    if train:
        seconds["finetune"] = dice.uniform(7, 9)
    record: dict[str, Any] = {
        "seconds": seconds,
        "work": {
            "frozen": 1200,
            "train": train,
            "test": 300 * (len(earlier) + 1),
            "decoded": 1500,
            "bytes_written": 5_600_000,
        },
    }
    if method != "duct":
        return record
    seconds |= {"merge": 0.08, "retrain": dice.uniform(1.2, 1.6), "transport": 0.05 * len(earlier) + 0.01}
    merge, retrain = a_b - dice.uniform(1, 6), a_b - dice.uniform(-0.8, 0.8)
    record["after"] = (
        {"merge": merge, "retrain": retrain, "transport": a_b} if earlier else {"merge": merge, "retrain": a_b}
    )
    record["similarity"] = dice.uniform(0.6, 0.95)
    record["task_vector_norm"] = dice.uniform(1.5, 3.5)
    record["transport"] = {name: _transport(dice, classes, plans) for name in earlier}
    return record


def _transport(dice: random.Random, classes: Sequence[str], plans: bool) -> dict[str, Any]:
    count = len(classes)
    record: dict[str, Any] = {"cost": dice.uniform(28, 46), "entropy": dice.uniform(2.3, 3.4), "marginal_error": 1e-9}
    if plans:
        rows = [
            [
                dice.expovariate(1) * 0.05 + (1.0 if i == j else 0.4 if (i * 3 + 1) % count == j else 0.0)
                for j in range(count)
            ]
            for i in range(count)
        ]
        record |= {
            "plan": [[v / sum(row) / count for v in row] for row in rows],
            "from_classes": list(classes),
            "to_classes": list(classes),
        }
    return record


def _forgetting(matrix: Sequence[dict[str, float]], without_last: int) -> float:
    old = [name for name in matrix[-1] if name in matrix[len(matrix) - 2]] if len(matrix) > 1 else []
    drops = [max(row[n] for row in matrix[: len(matrix) - without_last] if n in row) - matrix[-1][n] for n in old]
    return math.fsum(drops) / len(drops) if drops else 0.0


def _write_metrics(folder: Path, dice: random.Random, method: str, domains: Sequence[str], epochs: int) -> None:
    lines = []
    for stage, domain in enumerate(domains, 1):
        lines.append({"stage": stage, "domain": domain, "phase": "centers", "seconds": 0.6})
        if method == "simplecil":
            continue
        for phase, length in (("finetune", epochs), ("retrain", 3 if method == "duct" else 0)):
            lines += [
                {
                    "stage": stage,
                    "domain": domain,
                    "phase": phase,
                    "epoch": e + 1,
                    "seconds": 1.0,
                    "lr": {},
                    "loss": 2.2 * math.exp(-0.4 * e) + 0.12 + dice.uniform(0, 0.06),
                }
                for e in range(length)
            ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def write_many(root: Path, count: int = 500) -> None:
    """A grid: four streams, twelve methods, five orders, and seeds until there are ``count`` runs."""
    streams = {"office-home": 4, "domainnet": 6, "core50": 8, "cddb": 5}
    cells = [
        (stream, size, method, shift, seed)
        for seed in range(1, 100)
        for shift in range(5)
        for method in METHODS
        for stream, size in streams.items()
    ]
    for number, (stream, size, method, shift, seed) in enumerate(cells[:count]):
        names = [f"{stream} domain {i + 1}" for i in range(size)]
        order = names[shift % size :] + names[: shift % size]
        write_run(
            root / f"{number:03d}-{stream}-{method}",
            method,
            order,
            seed,
            stream=stream,
            plans=shift == 0 and seed == 1,
            classes=[f"class {i}" for i in range(20)],
        )
