"""Checkpoints: a manifest of JSON that names safetensors files by their content.

Every file is written beside its place, flushed to the disk and renamed, the manifest last. Whoever is killed at any
moment leaves the previous checkpoint or the new one, never a mixture. A part that did not change is not written again.
Nothing is ever unpickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from ductwork.errors import CheckpointError, DuctworkError

MANIFEST = "manifest.json"
FORMAT = 1


@dataclass
class State:
    """Everything that was learned: JSON, and named groups of tensors. Whole without the data."""

    meta: dict[str, Any]
    parts: dict[str, dict[str, Tensor]] = field(default_factory=dict)


class Vault:
    """A folder that holds one state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._objects: dict[str, str] = {}

    def names(self) -> tuple[str, ...]:
        """The parts that were last written or read."""
        return tuple(self._objects)

    def write(self, state: State, *, keep: Iterable[str] = ()) -> int:
        """Replace what the folder holds by ``state``; parts named in ``keep`` stay as they were last written.

        Returns the number of bytes written.
        """
        objects = {name: self._objects[name] for name in keep if name in self._objects}
        written = 0
        _make_folder(self.folder)
        for name, tensors in state.parts.items():
            if name in objects:
                continue
            data = save_tensors({key: _plain(value) for key, value in tensors.items()})
            digest = hashlib.sha256(data).hexdigest()
            objects[name] = f"{digest}.safetensors"
            if not (self.folder / objects[name]).exists():
                write_atomically(self.folder / objects[name], data)
                written += len(data)
        manifest = json.dumps({"format": FORMAT, "objects": objects, **state.meta}, indent=1).encode()
        write_atomically(self.folder / MANIFEST, manifest)
        self._objects = objects
        self._sweep()
        return written + len(manifest)

    def read(self) -> State | None:
        """What the folder holds, checked to the last bit; None where nothing was written yet."""
        path = self.folder / MANIFEST
        if not path.exists():
            return None
        try:
            meta = json.loads(path.read_text(encoding="utf-8"))
            version, objects = meta.pop("format"), meta.pop("objects")
        except (ValueError, KeyError, AttributeError, OSError) as error:
            raise CheckpointError(f"{path} is damaged ({error}); delete the folder to start again") from None
        if version != FORMAT:
            raise CheckpointError(f"{path} has format {version}, this version reads format {FORMAT}: update ductwork")
        parts = {name: self._read_part(file) for name, file in objects.items()}
        self._objects = dict(objects)
        return State(meta, parts)

    def _read_part(self, file: str) -> dict[str, Tensor]:
        path = self.folder / Path(file).name
        try:
            data = path.read_bytes()
        except OSError as error:
            raise CheckpointError(f"the checkpoint in {self.folder} lacks {file}: {error.strerror}") from None
        if hashlib.sha256(data).hexdigest() != path.stem:
            raise CheckpointError(
                f"{path} is damaged: its content does not match its name; delete the folder to start again"
            )
        try:
            return load_tensors(data)
        except SafetensorError as error:
            raise CheckpointError(f"{path} is not a safetensors file: {error}") from None

    def _sweep(self) -> None:
        """Remove what no manifest names any more: older parts, and what a crash left half written."""
        wanted = {MANIFEST, *self._objects.values()}
        for path in self.folder.iterdir():
            if path.name not in wanted and (path.suffix == ".safetensors" or path.name.startswith(".writing-")):
                with contextlib.suppress(OSError):
                    path.unlink()


def write_atomically(path: Path, data: bytes) -> None:
    """Write beside, flush to the disk, rename: a reader sees the old file or the new one."""
    beside = path.with_name(f".writing-{os.getpid()}-{path.name}")
    try:
        with open(beside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
        _sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise DuctworkError(f"cannot write {path}: {error.strerror or error}") from None


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DuctworkError(f"cannot make the folder {folder}: {error.strerror or error}") from None


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", memory_format=torch.contiguous_format).contiguous()
