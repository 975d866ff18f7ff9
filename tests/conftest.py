"""Small things that many tests share: a stream that can be learned in seconds and a backbone to learn it with."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line does; before torch is loaded

import numpy as np
import pytest
import torch

from ductwork.backbones import registry
from ductwork.backbones.base import Backbone
from ductwork.data.domain import ArraySource, Domain, ImageSet, Stream

torch.set_num_threads(1)  # threads that wait for each other on busy cores cost more than they bring
# a shell starts what runs in its background deaf to Ctrl-C, and processes that tests interrupt would inherit that
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def _cache_of_their_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing that a test does is found in the cache of whoever runs it, or comes from there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


CLASSES = ("east", "north", "south", "west")
SIZE = 32
_TINTS = {"day": (1.0, 1.0, 1.0), "dusk": (1.0, 0.4, 0.2), "night": (0.2, 0.3, 1.0)}


def images(domain: str, classes: Sequence[str], per_class: int, seed: int) -> ImageSet:
    """The class is the bright side of the image, the domain its colour."""
    draw = np.random.default_rng(seed)
    pictures, labels = [], []
    for label, name in enumerate(classes):
        for _ in range(per_class):
            light = draw.uniform(0.0, 0.35, (SIZE, SIZE))
            half = SIZE // 2
            sides = {"east": light[:, half:], "west": light[:, :half], "north": light[:half], "south": light[half:]}
            if name in sides:
                sides[name] += 0.6
            else:  # classes beyond the four sides: a bright frame
                light[[0, -1]] += 0.6
                light[:, [0, -1]] += 0.6
            tint = np.array(_TINTS.get(domain, (0.5, 1.0, 0.5)))
            pictures.append((np.clip(light[..., None] * tint, 0, 1) * 255).astype(np.uint8))
            labels.append(label)
    names = tuple(f"{domain}/{seed}/{i:04d}" for i in range(len(labels)))
    return ImageSet(ArraySource(np.stack(pictures), names), np.array(labels), tuple(classes))


def domain(name: str, classes: Sequence[str] = CLASSES, *, train: int = 8, test: int = 5, seed: int = 0) -> Domain:
    return Domain(name, images(name, classes, train, seed + 1), images(name, classes, test, seed + 1001))


@pytest.fixture
def stream() -> Stream:
    """Three domains of four classes."""
    return Stream("compass", tuple(domain(name, seed=i * 10) for i, name in enumerate(_TINTS)))


def tiny_backbone(name: str = "test_vit", seed: int = 0) -> Backbone:
    """One of timm's test architectures with random weights."""
    torch.manual_seed(seed)
    return registry.create(name, pretrained=False, input_size=SIZE)


@pytest.fixture
def backbone() -> Backbone:
    return tiny_backbone()
