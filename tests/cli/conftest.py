"""The command line called in this process: what a user types, prints and gets as an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

from ductwork.cli.main import main


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[..., Outcome]


@pytest.fixture
def ductwork(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """``ductwork("run", "x.yaml")`` runs the command."""

    def call(*words: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["ductwork", *map(str, words)])
        monkeypatch.setenv("DUCTWORK_DEBUG", "")  # set, so that it is put back: a command may set it
        capfd.readouterr()
        code = _code(main)
        sys.stdout.flush()
        out, err = capfd.readouterr()
        return Outcome(code, out, err)

    return call


def _code(entry: Callable[[], None]) -> int:
    try:
        entry()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    return 0


def quick(*settings: str) -> Sequence[str]:
    """Settings that make a run take a second."""
    return ["params.epochs=1", "params.retrain_epochs=1", "engine.precision=fp32", "engine.workers=0", *settings]


def is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0
