"""Where every number comes from: configuration and origin of each run."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ductwork.experiments.results import RunResult
from ductwork.report.collect import Run
from ductwork.report.content import Provenance, in_words
from ductwork.report.tables import byte_count, whole


def provenance(runs: Sequence[Run]) -> tuple[Provenance, ...]:
    return tuple(_one(run) for run in runs)


def _one(run: Run) -> Provenance:
    result = run.result
    title = f"{result.method} ({result.recipe}) on {result.stream}, seed {result.seed}, {in_words(result.order)}"
    facts = [
        ("folder", run.folder.as_posix()),
        ("status", run.progress),
        *_reason(result),
        ("order", in_words(result.order)),
        ("seed", str(result.seed)),
        ("recipe", result.recipe),
        ("backbone", result.backbone.name),
        ("backbone sha256", result.backbone.sha256),
        ("data fingerprint", result.data.fingerprint),
        ("precision", result.precision),
        ("device", result.device),
        *_sizes(result),
    ]
    facts += [(f"setting {key}", _text(value)) for key, value in sorted(result.params.items())]
    facts += [(f"version of {key}", value) for key, value in sorted(result.versions.items())]
    # Fields that this version does not know are shown, not dropped.
    facts += [(key, _text(value)) for key, value in sorted((result.model_extra or {}).items())]
    return Provenance(title, run.result.status, tuple(facts))


def _reason(result: RunResult) -> list[tuple[str, str]]:
    return [("reason", result.reason)] if result.reason else []


def _sizes(result: RunResult) -> list[tuple[str, str]]:
    sizes = (
        ("classes", whole(result.data.classes), result.data.classes),
        ("backbone parameters", whole(result.backbone.parameters), result.backbone.parameters),
        ("trainable parameters", whole(result.price.trainable_parameters), result.price.parameters),
        ("peak memory", byte_count(result.peak_memory_bytes), result.peak_memory_bytes),
    )
    return [(name, text) for name, text, known in sizes if known]


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str, ensure_ascii=False)
