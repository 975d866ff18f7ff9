"""Where test images lie before a run and after it, and what is said of them: what t-SNE is drawn from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ductwork import functional as F
from ductwork.backbones.base import Backbone
from ductwork.data.domain import ImageSet, IntArray, Stream
from ductwork.data.transforms import test_transform, train_transform
from ductwork.engine.bench import Bench
from ductwork.engine.learner import Learner
from ductwork.experiments.results import Embedding
from ductwork.methods.base import Phase, Stage


def embed(learner: Learner, pretrained: Backbone, stream: Stream, *, images: int, classes: int) -> Embedding:
    """Features of ``images`` test images of each of ``classes`` classes in each domain, before and after learning.

    Before: the pre-trained backbone, its classifier the centres of as many training images of each class and domain.
    After: what the method's own classifier sees, and says. Both choose among these classes only. The work is left in
    the learner's session.
    """
    tests = stream.seen(stream[-1])
    tested = {name for part in tests.values() for name in part.present()}
    names = [name for name in learner.method.rows.classes if name in tested]
    chosen = tuple(names[at] for at in _evenly(len(names), classes))
    points, test_domain = _some(list(tests.values()), chosen, images)
    examples, train_domain = _some([domain.train for domain in stream], chosen, images)
    spaces: list[tuple[Tensor, Tensor]] = []

    def look(stage: Stage) -> None:
        before = stage.features(pretrained, images=points)
        known = stage.features(pretrained, images=examples)
        after, scores = _seen_by_the_method(stage, learner, points)
        columns = [learner.method.rows.classes.index(name) for name in chosen]
        spaces.append((before, _nearest_center(before, known, examples.labels, train_domain)))
        spaces.append((after, scores[:, columns].argmax(1)))

    pretrained.to(learner.session.device).eval()
    _bench(learner, stream).run(Phase("embedding", look))
    (before, first), (after, last) = ((features.numpy(), said.numpy()) for features, said in spaces)
    return Embedding(chosen, tuple(tests), points.labels, test_domain, before, after, first, last)


def _bench(learner: Learner, stream: Stream) -> Bench:
    return Bench(
        learner.session,
        learner.method,
        stream[-1],
        len(stream),
        seed=learner.seed,
        train_transform=train_transform(learner.transform),
        test_transform=test_transform(learner.transform),
        tests={},
        records={},
        library={},
        title="[embedding]",
        save_epoch=lambda *_: None,
    )


def _seen_by_the_method(stage: Stage, learner: Learner, points: ImageSet) -> tuple[Tensor, Tensor]:
    """Features ``[n, d]`` and class scores ``[n, C]``; the images are read once."""
    method, count = learner.method, len(learner.method.rows.classes)
    both = stage.features(
        lambda inputs: torch.cat([method.fold(method(inputs).float()), method.features(inputs).float()], dim=1),
        images=points,
    )
    return both[:, count:], both[:, :count]


def _nearest_center(points: Tensor, examples: Tensor, labels: IntArray, domains: IntArray) -> Tensor:
    """For each point the class of the centre at the smallest angle; a centre is of one class in one domain."""
    pairs, rows = np.unique(np.stack([domains, labels]), axis=1, return_inverse=True)
    centers = F.class_centers(examples, torch.from_numpy(rows), pairs.shape[1])
    return torch.from_numpy(pairs[1])[F.cosine_logits(points, centers).argmax(1)]


def _evenly(count: int, wanted: int) -> list[int]:
    """``wanted`` positions spread evenly over ``count``, or all of them."""
    return sorted({int(at) for at in np.linspace(0, count - 1, min(count, wanted)).round()})


def _some(sets: Sequence[ImageSet], classes: Sequence[str], images: int) -> tuple[ImageSet, IntArray]:
    """So many images of each class in each set, labelled by their place in ``classes``, and the set of each image."""
    parts = []
    for one in sets:
        names = [one.label_name(i) for i in range(len(one))]
        of_class = [np.flatnonzero([name == wanted for name in names]) for wanted in classes]
        parts.append(one.subset(np.concatenate([at[_evenly(len(at), images)] for at in of_class])).relabel(classes))
    domains = np.concatenate([np.full(len(part), number) for number, part in enumerate(parts)])
    points = ImageSet.concat(parts).relabel(classes)
    return points, domains.astype(np.int64)
