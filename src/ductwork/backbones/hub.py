"""Pre-trained weights of timm from the network: the cache first, one quick look at the server, then the download."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch
from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError

from ductwork.backbones import catalog
from ductwork.errors import BackboneError

# Left alone, a download without network retries every file for half a minute. A server that does not
# answer within this time is not going to deliver some hundred megabytes either.
_PROBE_SECONDS = 5.0

_FILES = ("model.safetensors", "pytorch_model.bin")


def fetch(name: str, config: Mapping[str, Any]) -> Path:
    """The weights file for timm's pre-trained configuration ``config``, downloaded unless it is cached.

    Raises:
        BackboneError: It is not cached and cannot be downloaded; ``name`` is what the user asked for.
    """
    repository, url = config.get("hf_hub_id"), config.get("url")
    if not repository and not url:
        raise BackboneError(
            f"timm has no pre-trained weights for {name!r}; pass weights=FILE, or pretrained=False for random ones"
        )
    try:
        if repository:
            return _from_hub(repository, config.get("hf_hub_filename"))
        return _from_url(str(url))
    except Exception as error:  # the clients below change their exceptions with the HTTP library they use
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        offline = " or ".join(repr(entry.name) for entry in catalog.available() if entry.source != "hub")
        raise BackboneError(
            f"cannot fetch the weights of {name!r} ({repository or url}): {reason} -- set HF_HOME to a cache that "
            f"has them, pass weights=FILE, or use {offline}, which need no download"
        ) from error


def _from_hub(repository: str, filename: str | None) -> Path:
    files = (filename,) if filename else _FILES
    for file in files:
        cached = try_to_load_from_cache(repository, file)
        if isinstance(cached, str):
            return Path(cached)
    for file in files:
        try:
            get_hf_file_metadata(hf_hub_url(repository, file), timeout=_PROBE_SECONDS)
        except EntryNotFoundError:
            continue
        return Path(hf_hub_download(repository, file))
    raise FileNotFoundError(f"the repository has none of {', '.join(files)}")


def _from_url(url: str) -> Path:
    path = Path(torch.hub.get_dir(), "checkpoints", Path(urlparse(url).path).name)
    if not path.exists():
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=_PROBE_SECONDS):
            path.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(url, str(path), progress=False)
    return path
