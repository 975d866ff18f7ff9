"""The house rules: who may import whom, how long a file may be, what must never be called."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src" / "ductwork"
FILES = sorted(ROOT.rglob("*.py"))
ROOMS = ["functional", "data", "backbones", "methods", "engine", "experiments", "store", "report", "serving", "cli"]
"""From the ground up: a room may import itself and the rooms before it."""
ANYWHERE = {"errors", "validation", "__init__"}
NARROWER = {"report": {"experiments"}, "functional": set(), "data": {"functional"}}


def room(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> set[str]:
    """The modules of this package that a file imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= (
                {f"{node.module}.{alias.name}" for alias in node.names} if node.module == "ductwork" else {node.module}
            )
    return {name for name in found if name.split(".")[0] == "ductwork"}


def target(module: str) -> str:
    parts = module.split(".")
    return (
        parts[1]
        if (len(parts) > 1 and (ROOT / parts[1]).exists()) or (ROOT / f"{parts[-1]}.py").exists()
        else "__init__"
    )


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_downwards(path: Path) -> None:
    mine = room(path)
    if mine == "__init__":
        return  # the public names come from everywhere, lazily
    for module in imports(path):
        other = target(module)
        if other in ANYWHERE or other == mine:
            continue
        assert mine not in ANYWHERE, f"{mine} stands beside the rooms and may import none, but imports {module}"
        allowed = NARROWER.get(mine, set(ROOMS[: ROOMS.index(mine)]))
        assert other in allowed, f"{path.relative_to(ROOT)} imports {module}"


def test_report_reads_results_only() -> None:
    for path in (ROOT / "report").rglob("*.py"):
        others = {m for m in imports(path) if m.startswith("ductwork.experiments")}
        assert others <= {"ductwork.experiments.results", "ductwork.experiments.published"}, path


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_are_short(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= (300 if room(path) == "methods" else 400)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_is_unpickled(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("pickle", "dill", "cloudpickle"):
            assert node.attr == "UnpicklingError", "only its error may be caught"
        if isinstance(node, ast.ImportFrom):
            assert node.module not in ("pickle", "dill", "cloudpickle")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "load":
            options = {k.arg: ast.unparse(k.value) for k in node.keywords}
            if ast.unparse(node.func) == "torch.load":
                assert options.get("weights_only") == "True"
            if ast.unparse(node.func) in ("np.load", "numpy.load"):
                assert options.get("allow_pickle") == "False"
