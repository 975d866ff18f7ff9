"""Class-incremental streams: the classes of any stream, a few at a time.

Rows belong to (domain, class) pairs and classes get their best row, so class-incremental learning is a stream of
another kind and nothing else: every stage is a "domain" that brings classes of its own.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ductwork.data.domain import Domain, ImageSet, Stream
from ductwork.errors import ConfigError


def by_classes(stream: Stream, increment: int) -> Stream:
    """All images of ``stream`` pooled, ``increment`` classes a stage in sorted order; the last stage may have fewer.

    The paper's DomainNet B0 Inc69 is ``by_classes(domainnet, 69)``.
    """
    if not 1 <= increment < len(stream.classes):
        most = len(stream.classes) - 1
        raise ConfigError(f"increment must be between 1 and {most} on {stream.name!r}, not {increment}")
    train = ImageSet.concat([domain.train for domain in stream])
    test = ImageSet.concat(list((stream.tests or {d.name: d.test for d in stream}).values()))
    stages = []
    for start in range(0, len(stream.classes), increment):
        chosen = stream.classes[start : start + increment]
        name = f"classes {start + 1}-{start + len(chosen)}"
        stages.append(Domain(name, _only(train, chosen), _only(test, chosen)))
    return replace(stream, name=f"{stream.name}-inc{increment}", domains=tuple(stages), tests=None)


def _only(images: ImageSet, classes: tuple[str, ...]) -> ImageSet:
    wanted = np.array([name in set(classes) for name in images.classes])
    return images.subset(np.flatnonzero(wanted[images.labels])).relabel(classes)
