"""Settings are checked once, at the door, and what is wrong with them is said in one line."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ductwork.errors import ConfigError, suggest

Model = TypeVar("Model", bound=BaseModel)


def validate(model: type[Model], values: Mapping[str, Any], where: str) -> Model:
    """An instance of ``model``, or a ConfigError such as ``duct: epochs = -1: input should be at least 0``."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        problems = [f"{where}: {_describe(one, model)}" for one in error.errors()]
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise ConfigError(problems[0] + more, problems) from None


def _describe(error: ErrorDetails, model: type[BaseModel]) -> str:
    where = ".".join(str(part) for part in error["loc"]) or "configuration"
    if error["type"] == "extra_forbidden":
        return f"unknown key {where!r}{suggest(str(error['loc'][-1]), _fields(model, error['loc'][:-1]))}"
    if error["type"] == "missing":
        return f"{where} is missing"
    message = error["msg"].removeprefix("Value error, ")
    return f"{where} = {error.get('input')!r}: {message[:1].lower()}{message[1:]}"


def _fields(model: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """The names that are known where an unknown one was found."""
    for part in path:
        field = model.model_fields.get(str(part))
        inner = field.annotation if field else None
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            model = inner
        else:
            return []
    return list(model.model_fields)


def require(module: str, extra: str, what: str) -> ModuleType:
    """A module of an optional extra, or a ConfigError that says what to install for ``what``."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"{what} needs a package ({error}): pip install 'ductwork[{extra}]'") from None
