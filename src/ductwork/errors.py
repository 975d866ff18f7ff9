"""Errors that a user can put right. Each one prints as a single line: what is wrong, where, what to type instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DuctworkError(Exception):
    """Base of all errors with which ductwork addresses its user; the command line prints it and exits with 2."""


class ConfigError(DuctworkError):
    """A setting is unknown, misspelt, impossible or contradicts another."""


class DataError(DuctworkError):
    """A data set, folder or image cannot be used as it is."""


class BackboneError(DuctworkError):
    """A backbone is unknown, its weights do not fit, or a method cannot work on it."""


class CheckpointError(DuctworkError):
    """A checkpoint or run folder is damaged or belongs to something else."""


class TransportError(DuctworkError):
    """An optimal-transport plan is not a plan: zero, not finite, or off its marginals."""


class ShapeError(DuctworkError, ValueError):
    """Tensors that must fit together do not."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Say what was probably meant: `` (did you mean 'duct'?)`` or `` (known: a, b, c)``."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f" (did you mean {close[0]!r}?)"
    return f" (known: {', '.join(names)})" if names else ""
