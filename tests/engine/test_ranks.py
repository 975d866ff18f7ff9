"""A process alone is a run of one: nothing is asked of anybody."""

from __future__ import annotations

import pytest
import torch

from ductwork.engine.ranks import Ranks, join
from ductwork.engine.settings import EngineSettings
from ductwork.errors import DataError


def test_alone_everything_is_its_own_sum() -> None:
    ranks = join(EngineSettings())
    tensor = torch.arange(3.0)
    assert (ranks.rank, ranks.world, ranks.neighbours, ranks.leads) == (0, 1, 1, True)
    assert ranks.sum(tensor) is tensor
    assert ranks.whole(tensor, 3) is tensor
    assert ranks.largest(7) == 7
    assert ranks.tell("word") == "word"
    ranks.wait()


def test_alone_errors_are_raised_as_they_are() -> None:
    error = DataError("no such stream")
    ranks = Ranks()
    with pytest.raises(DataError) as found, ranks.one_voice(), ranks.together():
        raise error
    assert found.value is error
