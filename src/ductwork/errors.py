"""Errors that a user can put right. Each one prints as a single line: what is wrong, where, what to type instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DuctworkError(Exception):
    """Base of all errors with which ductwork addresses its user; the command line prints it and exits with 2."""

    @property
    def lines(self) -> tuple[str, ...]:
        """What the command line prints."""
        return (str(self),)


class ConfigError(DuctworkError):
    """A setting is unknown, misspelt, impossible or contradicts another.

    ``problems`` has a line for each thing that is wrong, where the message names only the first of several.
    """

    def __init__(self, message: str, problems: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems) or (message,)


class GridError(ConfigError):
    """Runs of a grid cannot be done; all that is wrong with them is said at once."""

    def __init__(self, problems: Iterable[str]) -> None:
        found = tuple(dict.fromkeys(problems))
        super().__init__("; ".join(found), found)

    @property
    def lines(self) -> tuple[str, ...]:
        return self.problems


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


class RankError(DuctworkError):
    """What ended a run of several processes; one of them says it for all."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Say what was probably meant: `` (did you mean 'duct'?)`` or `` (known: a, b, c)``."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f" (did you mean {close[0]!r}?)"
    return f" (known: {', '.join(names)})" if names else ""
