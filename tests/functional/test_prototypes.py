"""Completion of prototypes, written out and at its limits."""

import numpy as np
import pytest
import torch

from ductwork import functional as dwf
from ductwork.errors import DuctworkError, ShapeError


def sample(
    seed: int = 0, stages: int = 3, classes: int = 4, d: int = 6
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    prototypes = torch.tensor(np.random.default_rng(seed).normal(size=(stages * classes, stages, d)))
    row_stage = torch.arange(stages).repeat_interleave(classes)
    unknown = torch.arange(stages)[None, :] > row_stage[:, None]
    return prototypes.masked_fill(unknown[:, :, None], float("nan")), row_stage, unknown


@pytest.mark.parametrize("seed", range(3))
def test_equals_numpy(seed: int) -> None:
    prototypes, row_stage, unknown = sample(seed)
    p, stage = prototypes.numpy(), row_stage.numpy()
    completed = dwf.complete_prototypes(prototypes, row_stage).numpy()
    for row, j in zip(*np.nonzero(unknown.numpy()), strict=True):
        t = stage[row]
        cosine = np.array([p[row, t] @ q / np.linalg.norm(p[row, t]) / np.linalg.norm(q) for q in p[stage >= j, t]])
        weights = np.exp(cosine) / np.exp(cosine).sum()
        np.testing.assert_allclose(completed[row, j], weights @ p[stage >= j, j], rtol=1e-10)


def test_known_stay_and_nothing_is_missing() -> None:
    prototypes, row_stage, unknown = sample()
    completed = dwf.complete_prototypes(prototypes, row_stage)
    assert torch.equal(completed[~unknown], prototypes[~unknown])
    assert completed.isfinite().all()
    assert prototypes[unknown].isnan().all()
    torch.testing.assert_close(dwf.complete_prototypes(completed, row_stage), completed)


def test_cold_softmax_takes_the_match() -> None:
    prototypes, row_stage, _ = sample(stages=2)
    prototypes[5, 0] = 3 * prototypes[2, 0]  # row 5, of stage 1, looks like row 2, of stage 0
    completed = dwf.complete_prototypes(prototypes, row_stage, temperature=1e-4)
    torch.testing.assert_close(completed[2, 1], prototypes[5, 1])


def test_order_of_rows_does_not_matter() -> None:
    prototypes, row_stage, _ = sample()
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    shuffled = dwf.complete_prototypes(prototypes[order], row_stage[order])
    torch.testing.assert_close(shuffled, dwf.complete_prototypes(prototypes, row_stage)[order])


def test_single_stage() -> None:
    prototypes, row_stage, _ = sample(stages=1)
    assert torch.equal(dwf.complete_prototypes(prototypes, row_stage), prototypes)


def test_refusals() -> None:
    prototypes, row_stage, _ = sample()
    with pytest.raises(ShapeError, match=r"0 \.\. 2 must have rows, got \[0, 1\]"):
        dwf.complete_prototypes(prototypes, row_stage.clamp_max(1))
    with pytest.raises(ShapeError):
        dwf.complete_prototypes(prototypes[:, 0], row_stage)
    with pytest.raises(DuctworkError, match="temperature"):
        dwf.complete_prototypes(prototypes, row_stage, temperature=0.0)
