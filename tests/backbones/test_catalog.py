from __future__ import annotations

import subprocess
import sys

from timm.models import get_pretrained_cfg

from ductwork.backbones import catalog


def test_listing_does_not_import_torch() -> None:
    code = (
        "import sys; from ductwork.backbones import catalog; assert catalog.available(); "
        "print(sorted({'torch', 'timm', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_names_are_unique_and_the_default_comes_first() -> None:
    names = [entry.name for entry in catalog.available()]
    assert len(set(names)) == len(names)
    assert names[0] == catalog.DEFAULT


def test_published_backbones_are_pinned_to_tags_that_timm_has() -> None:
    for entry in catalog.available():
        if entry.source == "hub":
            architecture, _, tag = entry.timm_name.partition(".")
            config = get_pretrained_cfg(entry.timm_name)
            assert config is not None
            assert (config.architecture, config.tag) == (architecture, tag)
            assert tag


def test_find() -> None:
    entry = catalog.find("resnet101")
    assert entry is not None
    assert entry.timm_name == "resnet101.tv_in1k"
    assert catalog.find("resnet100") is None
