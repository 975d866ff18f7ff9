"""Settings are checked once, at the door, and what is wrong with them is said in one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ductwork.errors import ConfigError, suggest

Model = TypeVar("Model", bound=BaseModel)


def validate(model: type[Model], values: Mapping[str, Any], where: str) -> Model:
    """An instance of ``model``, or a ConfigError such as ``duct: epochs = -1: input should be at least 0``."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(f"{where}: {_describe(error, model)}") from None


def _describe(error: ValidationError, model: type[BaseModel]) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"]) or "configuration"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if first["type"] == "extra_forbidden":
        return f"unknown key {where!r}{suggest(str(first['loc'][-1]), _fields(model, first['loc'][:-1]))}{more}"
    if first["type"] == "missing":
        return f"{where} is missing{more}"
    message = first["msg"].removeprefix("Value error, ")
    return f"{where} = {first.get('input')!r}: {message[:1].lower()}{message[1:]}{more}"


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
