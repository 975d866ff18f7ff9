"""Class-incremental streams: the classes of any stream, a few at a time.

Rows belong to (domain, class) pairs and classes get their best row, so class-incremental learning is a stream of
another kind and nothing else: every stage is a "domain" that brings classes of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ductwork.data.domain import Domain, ImageSet, Stream
from ductwork.errors import ConfigError


def by_classes(
    stream: Stream,
    increment: int,
    *,
    classes: Sequence[str] | None = None,
    name: str | None = None,
    one_domain_a_stage: bool = False,
) -> Stream:
    """All images of ``stream`` pooled, ``increment`` classes a stage; the last stage may have fewer.

    Classes come sorted by name unless ``classes`` gives their order. The paper's DomainNet B0 Inc69, which takes them
    in the order of the published labels, is the stream ``domainnet-cil``. With ``one_domain_a_stage`` nothing is
    pooled: the images of each stage are those of the next domain, so that classes and domain change together.
    """
    ordered = stream.classes if classes is None else tuple(classes)
    if sorted(ordered) != list(stream.classes):
        odd = sorted(set(ordered) ^ set(stream.classes)) or [c for c in ordered if ordered.count(c) > 1]
        raise ConfigError(f"the order of the classes must name each class of {stream.name!r} once; see {odd[0]!r}")
    if not 1 <= increment < len(stream.classes):
        most = len(stream.classes) - 1
        raise ConfigError(f"increment must be between 1 and {most} on {stream.name!r}, not {increment}")
    starts = range(0, len(ordered), increment)
    if one_domain_a_stage:
        if len(starts) > len(stream):
            raise ConfigError(
                f"{len(starts)} stages of {increment} classes, but {len(stream)} domains to take them from"
            )
        sources = [(domain.train, domain.test) for domain in stream]
    else:
        tests = list((stream.tests or {d.name: d.test for d in stream}).values())
        sources = [(ImageSet.concat([domain.train for domain in stream]), ImageSet.concat(tests))] * len(starts)
    stages = []
    for start, (train, test) in zip(starts, sources, strict=False):
        chosen = ordered[start : start + increment]
        stage = f"classes {start + 1}-{start + len(chosen)}"
        stages.append(Domain(stage, _only(train, chosen), _only(test, chosen)))
    return replace(stream, name=name or f"{stream.name}-inc{increment}", domains=tuple(stages), tests=None)


def _only(images: ImageSet, classes: tuple[str, ...]) -> ImageSet:
    wanted = np.array([name in set(classes) for name in images.classes])
    return images.subset(np.flatnonzero(wanted[images.labels])).relabel(classes)
