"""The documentation names what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from ductwork.engine.settings import EngineSettings
from ductwork.experiments.config import RunConfig

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("model", [RunConfig, EngineSettings])
def test_every_setting_is_documented(model: type[BaseModel]) -> None:
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    missing = [name for name in model.model_fields if f"`{name}`" not in text]
    assert missing in ([], ["engine"])


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in link:
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_ci_calls_the_test_command_of_the_readme() -> None:
    assert "make test" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
