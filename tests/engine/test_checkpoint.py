"""Checkpoints: whole or not at all, checked to the last bit, nothing written twice."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from ductwork.engine.checkpoint import MANIFEST, State, Vault, write_atomically
from ductwork.errors import CheckpointError, DuctworkError


def state(value: float, **meta: object) -> State:
    return State(dict(meta), {"a": {"w": torch.full((3,), value)}, "b": {"n": torch.tensor(7)}})


def test_round_trip(tmp_path: Path) -> None:
    Vault(tmp_path).write(state(1.5, note="hello"))
    found = Vault(tmp_path).read()
    assert found is not None
    assert found.meta == {"note": "hello"}
    assert torch.equal(found.parts["a"]["w"], torch.full((3,), 1.5))
    assert found.parts["b"]["n"].dtype == torch.int64


def test_an_empty_folder_holds_nothing(tmp_path: Path) -> None:
    assert Vault(tmp_path / "none").read() is None


def test_what_did_not_change_is_not_written_again(tmp_path: Path) -> None:
    vault = Vault(tmp_path)
    first = vault.write(state(1.0))
    before = {p.name: p.stat().st_mtime_ns for p in tmp_path.glob("*.safetensors")}
    second = vault.write(state(2.0))
    after = {p.name: p.stat().st_mtime_ns for p in tmp_path.glob("*.safetensors")}
    assert second < first
    assert len(before) == len(after) == 2, "the part that was replaced is gone"
    assert len(before.items() & after.items()) == 1


def test_kept_parts_are_not_looked_at(tmp_path: Path) -> None:
    vault = Vault(tmp_path)
    vault.write(state(1.0))
    vault.write(State({}, {"b": {"n": torch.tensor(8)}}), keep=["a"])
    found = Vault(tmp_path).read()
    assert found is not None
    assert torch.equal(found.parts["a"]["w"], torch.full((3,), 1.0))
    assert int(found.parts["b"]["n"]) == 8


@pytest.mark.parametrize("at", [0, 8, 60, -1])
def test_one_flipped_bit_is_noticed(tmp_path: Path, at: int) -> None:
    Vault(tmp_path).write(state(1.0))
    for path in tmp_path.glob("*.safetensors"):
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match="damaged"):
        Vault(tmp_path).read()


def test_missing_part_and_broken_manifest(tmp_path: Path) -> None:
    Vault(tmp_path).write(state(1.0))
    next(tmp_path.glob("*.safetensors")).unlink()
    with pytest.raises(CheckpointError, match="lacks"):
        Vault(tmp_path).read()
    (tmp_path / MANIFEST).write_text('{"format": 1')
    with pytest.raises(CheckpointError, match="damaged"):
        Vault(tmp_path).read()


def test_a_manifest_cannot_point_outside(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    Vault(inner).write(state(1.0))
    part = next(inner.glob("*.safetensors"))
    part.rename(tmp_path / part.name)
    text = (inner / MANIFEST).read_text().replace(part.name, f"../{part.name}")
    (inner / MANIFEST).write_text(text)
    with pytest.raises(CheckpointError, match="lacks"):
        Vault(inner).read()


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text('{"format": 99, "objects": {}}')
    with pytest.raises(CheckpointError, match="update ductwork"):
        Vault(tmp_path).read()


def test_leftovers_of_a_crash_are_swept(tmp_path: Path) -> None:
    (tmp_path / ".writing-1-x").write_bytes(b"half")
    (tmp_path / ("0" * 64 + ".safetensors")).write_bytes(b"old")
    Vault(tmp_path).write(state(1.0))
    assert len(list(tmp_path.iterdir())) == 3


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    write_atomically(path, b"old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DuctworkError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["x"]
