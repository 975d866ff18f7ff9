"""Evaluation: one pass over test images, however many things are measured on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ductwork.data.domain import ImageSet
from ductwork.data.loading import Loader, Transform
from ductwork.engine.reading import image_loader
from ductwork.engine.session import Session
from ductwork.engine.whole import whole_batch
from ductwork.methods.base import Method

Outputs = Callable[[Tensor], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Evaluation:
    """Accuracy in percent on each test set, and over all their images together (A_b)."""

    accuracy: dict[str, float]
    n_test: dict[str, int]
    A_b: float
    after: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        each = ", ".join(f"{name} {value:.2f}" for name, value in self.accuracy.items())
        return f"{self.A_b:.2f} % ({each})"


def evaluate(
    session: Session,
    method: Method,
    tests: Mapping[str, ImageSet],
    transform: Transform,
    outputs: Outputs | None = None,
) -> Evaluation:
    """The share of images whose best class is theirs. An image of a class that was never learned counts as wrong."""
    method.eval()
    score = outputs or method.outputs
    place = {name: i for i, name in enumerate(method.rows.classes)}
    right: dict[str, dict[str, int]] = {}
    loaders = {}
    for name, images in tests.items():
        known = np.array([place.get(cls, -1) for cls in images.classes] or [-1], dtype=np.int64)
        loaders[name] = image_loader(
            session,
            images,
            transform,
            title="test",
            batch_size=session.settings.eval_batch_size,
            targets=known[images.labels],
        )
    session.progress.begin("test", sum(len(images) for images in tests.values()))
    for name, loader in loaders.items():
        right[name] = _count_right(session, method, loader, score)
    n_test = {name: len(images) for name, images in tests.items()}
    total = max(1, sum(n_test.values()))
    shares = {
        step: 100.0 * sum(counts.get(step, 0) for counts in right.values()) / total
        for step in {key: None for counts in right.values() for key in counts}
    }
    accuracy = {name: 100.0 * right[name].get("final", 0) / max(1, n) for name, n in n_test.items()}
    overall = shares.pop("final", 0.0)
    session.progress.end(f"A_b {overall:.2f} %")
    return Evaluation(accuracy, n_test, overall, shares)


def _count_right(session: Session, method: Method, loader: Loader, score: Outputs) -> dict[str, int]:
    counts: dict[str, Tensor] = {}
    with session.frozen():
        for batch in loader.epoch():
            batch = batch.to(session.device)
            with whole_batch(session.ranks, batch.inputs, batch.total) as inputs:
                scores = score(inputs)
            for name, rows in scores.items():
                best = method.fold(rows[: len(batch)].float()).argmax(1)
                hit = (best == batch.targets).sum()
                counts[name] = counts[name] + hit if name in counts else hit
            session.progress.advance(batch.total)
            session.work.add(test=len(batch))
    session.work.add(decoded=loader.decoded)
    loader.close()
    return {name: int(session.sum(count)) for name, count in counts.items()}


@dataclass(frozen=True)
class Prediction:
    """What the model makes of one image."""

    label: str
    probability: float
    domain: str
    scores: dict[str, float]


def predict(session: Session, method: Method, inputs: Tensor) -> list[Prediction]:
    """Predictions for prepared images ``[n, 3, S, S]``: class, probability, and the domain whose row fits best."""
    method.eval()
    with session.frozen():
        rows = method(inputs.to(session.device)).float()
    classes = method.fold(rows)
    shares = torch.softmax(classes, dim=1).cpu()
    names, blocks, row_block = method.rows.classes, method.rows.blocks, method.rows.row_block()
    nearest = row_block[rows.argmax(1).cpu()]
    return [
        Prediction(
            names[int(share.argmax())],
            float(share.max()),
            blocks[int(block)].domain,
            dict(zip(names, share.tolist(), strict=True)),
        )
        for share, block in zip(shares, nearest, strict=True)
    ]
