"""The features of test images that a run writes down: of which images, in which space, and what is said of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from ductwork.data.domain import Stream
from ductwork.data.transforms import test_transform as test_view
from ductwork.engine.learner import Learner
from ductwork.engine.settings import EngineSettings
from ductwork.errors import CheckpointError
from ductwork.experiments.config import RunConfig
from ductwork.experiments.embedding import embed
from ductwork.experiments.results import EMBEDDING_FILE, read_embedding, read_result
from ductwork.experiments.run import run
from tests.conftest import tiny_backbone
from tests.experiments.pictures import pictures

FAST = EngineSettings(precision="fp32", workers=0, eval_batch_size=8)
QUICK = {"precision": "fp32", "workers": 0, "checkpoint": "stage"}


@pytest.mark.parametrize("method", ["simplecil", "ease", "s-iprompt"])
def test_spaces_before_and_after(method: str, stream: Stream) -> None:
    learner = Learner(
        method, backbone=tiny_backbone(), params={} if method == "simplecil" else {"epochs": 1}, settings=FAST
    )
    for domain in stream:
        learner.learn(domain)
    found = embed(learner, tiny_backbone(), stream, images=3, classes=2)
    assert (found.classes, found.domains) == (("east", "west"), stream.order)
    assert [(found.labels == c).sum() for c in (0, 1)] == [9, 9]
    assert np.bincount(found.domain_of).tolist() == [6, 6, 6]
    assert set(found.said_before) | set(found.said_after) <= {0, 1}
    picture = stream[1].test.subset(np.flatnonzero(found.domain_of == 1)[:1] - 6)  # the first of each is the first
    inputs = test_view(learner.transform).batch([picture.read(0)], np.zeros(1, np.uint64))
    learner.method.eval()
    with torch.no_grad():
        at = int(np.flatnonzero(found.domain_of == 1)[0])
        np.testing.assert_allclose(tiny_backbone().eval()(inputs)[0].numpy(), found.before[at], atol=1e-4)
        np.testing.assert_allclose(learner.method.features(inputs)[0].numpy(), found.after[at], atol=1e-4)
    assert (found.after.shape == found.before.shape) == (method != "ease")


def test_nothing_moves_when_nothing_is_trained(stream: Stream) -> None:
    learner = Learner("simplecil", backbone=tiny_backbone(), settings=FAST)
    for domain in stream:
        learner.learn(domain)
    found = embed(learner, tiny_backbone(), stream, images=100, classes=100)
    np.testing.assert_array_equal(found.before, found.after)
    np.testing.assert_array_equal(found.said_before, found.said_after)  # all training images, so the same centres
    assert len(found) == sum(len(domain.test) for domain in stream)


def test_a_run_writes_it_when_asked(tmp_path: Path) -> None:
    photos = str(pictures(tmp_path / "photos"))
    values = {"method": "simplecil", "stream": photos, "engine": {**QUICK, "embedding": 2, "embedding_classes": 2}}
    asked, plain = RunConfig.model_validate(values), RunConfig.model_validate({**values, "engine": QUICK})
    assert asked.name() != plain.name()
    result = run(asked, tmp_path / "asked")
    found = read_embedding(tmp_path / "asked")
    assert found is not None and result.embedding is not None
    assert (len(found), result.embedding.images, result.embedding.classes) == (8, 8, 2)
    np.testing.assert_array_equal(found.before, found.after)  # nothing was trained, so what was read is what was seen
    # two spaces of test images, one of training images
    assert result.embedding.work.frozen == 24
    assert result == read_result(tmp_path / "asked")
    without = run(plain, tmp_path / "plain")
    assert without.embedding is None and read_embedding(tmp_path / "plain") is None
    assert [stage.work.frozen for stage in without.stages] == [stage.work.frozen for stage in result.stages]
    (tmp_path / "asked" / EMBEDDING_FILE).write_bytes(b"\0" * 40)
    with pytest.raises(CheckpointError, match=r"embedding\.safetensors does not hold"):
        read_embedding(tmp_path / "asked")
