"""The public names: complete, lazy, documented, and dependent on nothing above."""

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys

import pytest

from ductwork import functional as dwf

MODULES = [module.name for module in pkgutil.iter_modules(dwf.__path__)]
PRIVATE = {"sinkhorn"}


def test_all_is_what_the_modules_offer() -> None:
    offered = [
        name
        for module in MODULES
        if module not in PRIVATE
        for name in importlib.import_module(f"ductwork.functional.{module}").__all__
    ]
    assert sorted(offered) == sorted(dwf.__all__)
    assert len(set(offered)) == len(offered)
    assert set(dwf.__all__) <= set(dir(dwf))


@pytest.mark.parametrize("name", dwf.__all__)
def test_every_name_resolves_and_is_documented(name: str) -> None:
    value = getattr(dwf, name)
    if callable(value):
        assert len(inspect.getdoc(value) or "") > 40


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="nope"):
        _ = dwf.nope


def test_table_names_every_equation() -> None:
    table = dwf.__doc__ or ""
    assert {int(k) for k in re.findall(r"^Eq\. (\d+) ", table, re.MULTILINE)} == set(range(1, 11))
    for name in re.findall(r"``(\w+)", table):
        assert name in {*dwf.__all__, "argmax"}, name


def test_importing_is_lazy() -> None:
    code = (
        "import sys, ductwork.functional as f; assert 'torch' not in sys.modules;"
        "f.transport_plan, f.summary, f.herd; assert not {'ot', 'sklearn', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("module", MODULES)
def test_imports_only_errors_and_itself(module: str) -> None:
    source = inspect.getsource(importlib.import_module(f"ductwork.functional.{module}"))
    for imported in re.findall(r"^\s*(?:from|import) (ductwork[\w.]*)", source, re.MULTILINE):
        assert imported.startswith(("ductwork.errors", "ductwork.functional")), imported
