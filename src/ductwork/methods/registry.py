"""Methods by name: every file of this package that defines one, and every entry point ``ductwork.methods``."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any

import ductwork.methods as package
from ductwork.errors import ConfigError, suggest
from ductwork.methods.base import Method, MethodConfig
from ductwork.validation import validate

ENTRY_POINT = "ductwork.methods"


@cache
def methods() -> Mapping[str, type[Method]]:
    """All methods that can be used here, by name."""
    found: dict[str, type[Method]] = {}
    for module in pkgutil.iter_modules(package.__path__):
        for value in vars(importlib.import_module(f"{package.__name__}.{module.name}")).values():
            if isinstance(value, type) and issubclass(value, Method) and "name" in vars(value):
                found[value.name] = value
    for point in entry_points(group=ENTRY_POINT):
        try:
            method = point.load()
        except Exception as error:  # a broken plug-in must not take the working methods with it, but must be named
            raise ConfigError(f"the method plug-in {point.name!r} ({point.value}) cannot be loaded: {error}") from error
        if not (isinstance(method, type) and issubclass(method, Method)):
            raise ConfigError(f"the method plug-in {point.name!r} ({point.value}) is not a subclass of Method")
        found[method.name] = method
    return dict(sorted(found.items()))


def find(name: str) -> type[Method]:
    known = methods()
    if name not in known:
        raise ConfigError(f"unknown method {name!r}{suggest(name, known)}")
    return known[name]


def configure(
    method: type[Method], recipe: str = "default", stream: str = "", params: Mapping[str, Any] | None = None
) -> MethodConfig:
    """The hyper-parameters of a recipe on a stream, with ``params`` on top; every key and value is checked."""
    if recipe not in method.recipes:
        raise ConfigError(f"method {method.name!r} has no recipe {recipe!r}{suggest(recipe, method.recipes)}")
    values = {**method.recipes[recipe].on(stream), **(params or {})}
    return validate(method.Config, values, f"method {method.name!r}")
