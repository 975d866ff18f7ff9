"""ductwork teaches a trained image classifier new visual domains, without the old images and without forgetting.

    import ductwork as dw

    stream = dw.streams.folders("photos/")
    learner = dw.Learner("duct")
    for domain in stream:
        learner.learn(domain)
        print(learner.evaluate(stream.seen(domain)))
    learner.save("model/")
    dw.load("model/").predict("cat.jpg")

Everything is loaded when it is first used, so that ``import ductwork`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from ductwork import functional
    from ductwork.data import streams
    from ductwork.data.domain import Domain, ImageSet, Stream
    from ductwork.engine.learner import Learner
    from ductwork.engine.settings import EngineSettings
    from ductwork.errors import DuctworkError

__all__ = [
    "Domain",
    "DuctworkError",
    "EngineSettings",
    "ImageSet",
    "Learner",
    "Stream",
    "functional",
    "load",
    "streams",
]

__version__ = "0.1.0"

_WHERE = {
    "Domain": ("ductwork.data.domain", "Domain"),
    "DuctworkError": ("ductwork.errors", "DuctworkError"),
    "EngineSettings": ("ductwork.engine.settings", "EngineSettings"),
    "ImageSet": ("ductwork.data.domain", "ImageSet"),
    "Learner": ("ductwork.engine.learner", "Learner"),
    "Stream": ("ductwork.data.domain", "Stream"),
    "functional": ("ductwork.functional", ""),
    "streams": ("ductwork.data.streams", ""),
}


def load(folder: str | Path, **options: Any) -> Learner:
    """A learner from a folder that ``Learner.save`` or a run has written."""
    from ductwork.engine.learner import Learner

    return Learner.load(folder, **options)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'ductwork' has no attribute {name!r}")
    module, attribute = _WHERE[name]
    loaded = importlib.import_module(module)
    return getattr(loaded, attribute) if attribute else loaded


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
