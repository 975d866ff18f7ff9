"""``ductwork list``."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Topic(StrEnum):
    """What can be listed."""

    methods = "methods"
    streams = "streams"
    backbones = "backbones"
    recipes = "recipes"


def listing(topic: Annotated[Topic, typer.Argument(help="What to list.")]) -> None:
    """Say which methods, streams, backbones or recipes there are."""
    from ductwork.cli.terminal import table

    if topic is Topic.backbones:
        from ductwork.backbones.catalog import available

        table(["backbone", "what it is", "timm model", "weights from"], [_strings(e) for e in available()])
        print("Any other timm model works by its name, for instance convnext_tiny.in12k_ft_in1k.")
    elif topic is Topic.streams:
        from ductwork.data.streams import available as streams

        table(
            ["stream", "what it is", "where the data come from"],
            [[name, info.about, info.origin] for name, info in streams().items()],
        )
        print("The path of a folder <domain>/<class>/<image> is a stream, too.")
    else:
        from ductwork.methods.registry import methods

        found = methods().values()
        if topic is Topic.methods:
            table(["method", "what it does", "reference"], [[m.name, m.summary, m.reference] for m in found])
        else:
            rows = [
                [m.name, name, recipe.summary, _values(recipe.values)]
                for m in found
                for name, recipe in m.recipes.items()
            ]
            table(["method", "recipe", "what it is", "values that differ from the defaults"], rows)


def _strings(entry: object) -> list[str]:
    return [str(getattr(entry, field)) for field in ("name", "about", "timm_name", "source")]


def _values(values: object) -> str:
    return ", ".join(f"{key}={value}" for key, value in dict(values).items()) if values else ""  # type: ignore[call-overload]
