"""Where the engine's batches of images come from: the one place that knows of the cache."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ductwork.data.cache import Watcher
from ductwork.data.domain import ImageSet
from ductwork.data.loading import Loader, Transform
from ductwork.data.transforms import TransformSpec, kept_side
from ductwork.engine.session import Session


def image_loader(
    session: Session,
    images: ImageSet,
    transform: Transform,
    *,
    title: str,
    batch_size: int,
    targets: npt.NDArray[np.int64] | None = None,
    seed: int = 0,
    shuffle: bool = False,
    drop_last: bool = False,
) -> Loader:
    """Batches for this rank. Images that the cache lacks are put there first, by all ranks together."""
    spec = getattr(transform, "spec", None)
    if session.cache is not None and isinstance(spec, TransformSpec):
        progress = session.progress
        watcher = Watcher(lambda n: progress.begin(f"{title} decode", n), progress.advance, progress.say)
        images, decoded = session.cache.cached(images, kept_side(spec), workers=session.workers, watcher=watcher)
        session.work.add(decoded=decoded)
    return Loader(
        images,
        transform,
        batch_size=batch_size,
        targets=targets,
        workers=session.workers,
        seed=seed,
        shuffle=shuffle,
        rank=session.rank,
        world=session.world,
        drop_last=drop_last,
        device=session.device,
    )
