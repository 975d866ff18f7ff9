"""What a run is: a method on a stream in an order with a seed. Read from YAML, checked as a whole."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from ductwork.engine.settings import EngineSettings
from ductwork.errors import ConfigError
from ductwork.validation import validate

TrackerName = Literal["tensorboard", "mlflow", "wandb"]

# Settings of the engine on which numbers or files of a run depend.
_DECIDES = ("precision", "cache", "evaluate_phases", "evaluate_ahead", "embedding", "embedding_classes")


class RunConfig(BaseModel):
    """One run. Every field has a default, so that an empty file is a run of DUCT on the demo stream."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: str = Field("duct", description="a name of `ductwork list methods`")
    recipe: str = Field("default", description="a named set of hyper-parameters of the method")
    params: dict[str, Any] = Field(default_factory=dict, description="hyper-parameters on top of the recipe")
    stream: str = Field("demo", description="a name of `ductwork list streams`, or a folder of domains")
    root: str | None = Field(None, description="where the download of a named stream lies")
    order: int | list[str] | None = Field(None, description="number of a predefined order, or names of domains")
    increment: int | None = Field(
        None, ge=1, description="class-incremental: all domains pooled, so many classes a stage"
    )
    split: float | None = Field(None, gt=0, lt=1, description="share of training images where folders have no split")
    split_seed: int = Field(1993, description="seed of that split")
    backbone: str = Field("glyph_vit", description="a name of `ductwork list backbones`, or any timm model")
    weights: str | None = Field(None, description="a local file with the backbone's weights")
    image_size: int | None = Field(None, ge=1, description="side of the images, if not the backbone's own")
    transform: str = Field("auto", description="how images are prepared; auto takes the stream's own")
    seed: int = Field(1993, ge=0, description="seed of everything that is drawn")
    engine: EngineSettings = Field(default_factory=EngineSettings)
    track: list[TrackerName] = Field(default_factory=list, description="who is told of the run's progress")

    def name(self) -> str:
        """A folder name that says what the run is, with a digest of all that it does not say."""
        digest = hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()[:8]
        return f"{Path(self.stream).name}-{self.method}-{self.recipe}-seed{self.seed}-{digest}"

    def identity(self) -> dict[str, Any]:
        """All that decides what is learned: everything but where and how it is computed, and who is told."""
        values = self.model_dump(mode="json", exclude={"track"})
        values["engine"] = {key: values["engine"][key] for key in _DECIDES}
        return values


def load_config(path: Path | None, overrides: Sequence[str] = ()) -> RunConfig:
    """A run from a YAML file and ``key=value`` pairs; dots lead into sections: ``params.epochs=5``."""
    values = read_yaml(path) if path is not None else {}
    return validate(RunConfig, override(values, overrides), str(path or "configuration"))


def read_yaml(path: Path, command: str = "ductwork run") -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}; `{command}` takes a YAML file") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold `key: value` lines, not a {type(values).__name__}")
    return values


def override(values: Mapping[str, Any], pairs: Sequence[str]) -> dict[str, Any]:
    """``values`` with ``key=value`` pairs put on top; values are read as YAML."""
    result = json.loads(json.dumps(values, default=str))
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"{pair!r} is not a setting: write key=value, for instance params.epochs=5")
        at = result
        *sections, last = key.split(".")
        for section in sections:
            at = at.setdefault(section, {})
            if not isinstance(at, dict):
                raise ConfigError(f"{key!r}: {section!r} is a value, not a section")
        try:
            at[last] = yaml.safe_load(text)
        except yaml.YAMLError:
            at[last] = text
    return dict(result)
