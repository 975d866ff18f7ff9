"""The split is a function of names, ratio and seed."""

from __future__ import annotations

import numpy as np
import pytest

from ductwork.data.splits import train_test_split
from ductwork.errors import ConfigError, DataError

NAMES = [f"d/{'ab'[i % 2]}/{i:03d}.jpg" for i in range(200)]
LABELS = [i % 2 for i in range(200)]


def chosen(names: list[str], labels: list[int], ratio: float = 0.7, seed: int = 1) -> set[str]:
    train, test = train_test_split(names, labels, ratio, seed)
    assert sorted([*train, *test]) == list(range(len(names)))
    assert sorted(train) == list(train) and sorted(test) == list(test)
    return {names[i] for i in train}


def test_share_of_each_class() -> None:
    train = chosen(NAMES, LABELS)
    assert sum("/a/" in name for name in train) == sum("/b/" in name for name in train) == 70


def test_order_of_the_listing_does_not_matter() -> None:
    order = np.random.default_rng(0).permutation(200)
    assert chosen([NAMES[i] for i in order], [LABELS[i] for i in order]) == chosen(NAMES, LABELS)


def test_other_classes_do_not_matter() -> None:
    alone = chosen(NAMES[::2], [0] * 100)
    assert alone == {name for name in chosen(NAMES, LABELS) if "/a/" in name}


def test_a_new_image_moves_one_other_at_most() -> None:
    before = chosen(NAMES, LABELS)
    assert len(before - chosen([*NAMES, "d/a/new.jpg"], [*LABELS, 0])) <= 1


def test_seed_and_ratio() -> None:
    assert chosen(NAMES, LABELS) != chosen(NAMES, LABELS, seed=2)
    assert chosen(NAMES, LABELS, ratio=0.5) < chosen(NAMES, LABELS, ratio=0.8)


def test_it_does_not_change_between_versions() -> None:
    assert train_test_split([f"{i}.png" for i in range(10)], [0] * 10, 0.5, 1993)[0].tolist() == [0, 5, 6, 8, 9]


@pytest.mark.parametrize(("n", "ratio", "train"), [(1, 0.1, 1), (2, 0.99, 1), (2, 0.01, 1), (3, 0.9, 2), (10, 0.7, 7)])
def test_small_classes(n: int, ratio: float, train: int) -> None:
    assert len(train_test_split(NAMES[:n], [0] * n, ratio, 0)[0]) == train


def test_what_is_impossible() -> None:
    for ratio in (0.0, 1.0, -1.0, 7.0):
        with pytest.raises(ConfigError, match="between 0 and 1"):
            train_test_split(NAMES, LABELS, ratio, 0)
    with pytest.raises(DataError, match="listed twice"):
        train_test_split(["a", "b", "a"], [0, 0, 0], 0.5, 0)
    with pytest.raises(DataError, match="3 names but 1 labels"):
        train_test_split(["a", "b", "c"], [0], 0.5, 0)
