"""The official logs as reference: matrices and numbers as they were printed."""

import math
from typing import Any

import numpy as np
import pytest

from ductwork import functional as dwf
from ductwork.errors import DuctworkError, ShapeError

OFFICE = {"Art": 729, "Clipart": 1310, "Product": 1332, "Real_World": 1308}
DOMAINNET = [14604, 15582, 21850, 51750, 52041, 20916]
CDDB = {"gaugan": 2000, "biggan": 800, "wild": 2063, "wfir": 400, "san": 90}


def lower(*rows: list[float]) -> Any:
    matrix = np.full((len(rows), len(rows)), np.nan)
    for i, row in enumerate(rows):
        matrix[i, : i + 1] = row
    return matrix


# name -> matrix, test sizes in order, logged curve, A-bar, forgetting, forgetting after Chaudhry (None: not given)
LOGS = {
    "office-home 3": (
        lower([92.49], [93.24, 73.44], [93.09, 74.35, 92.89], [93.54, 75.57, 92.66, 87.11]),
        [OFFICE[d] for d in ("Product", "Clipart", "Real_World", "Art")],
        [92.49, 83.42, 86.81, 87.26], 87.495, 0.077, -0.43,
    ),
    "office-home 1": (
        lower([84.77], [87.79, 73.13], [87.11, 75.80, 93.17], [86.69, 75.19, 93.17, 91.97]),
        list(OFFICE.values()),
        [84.77, 78.37, 85.11, 86.79], 83.76, 0.57, 0.57,
    ),
    "cddb 4": (
        lower([97.70], [98.75, 97.12], [98.45, 95.88, 66.17], [98.35, 91.38, 68.98, 57.75],
              [94.80, 76.88, 70.87, 78.50, 52.22]),
        list(CDDB.values()),
        [97.70, 98.29, 84.33, 82.69, 80.96], 88.794, 6.0475, 0.39,
    ),
    "cddb 1": (
        lower([54.44], [56.67, 88.75], [53.33, 91.50, 92.12], [53.33, 80.50, 93.75, 75.86],
              [53.33, 73.75, 94.88, 72.37, 97.70]),
        [CDDB[d] for d in ("san", "wfir", "biggan", "wild", "gaugan")],
        [54.44, 82.86, 89.22, 80.08, 84.98], 78.316, 6.145, 5.86,
    ),
    "domainnet 1": (
        lower([74.29], [79.31, 42.82], [79.88, 43.47, 76.70], [80.07, 41.72, 75.48, 60.13],
              [78.96, 40.59, 71.80, 56.28, 87.20], [79.29, 40.28, 70.90, 54.20, 86.51, 70.22]),
        DOMAINNET,
        [74.29, 60.48, 67.64, 63.40, 69.34, 68.52], 67.278, 3.278, 3.28,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOGS)
def test_official_logs(name: str) -> None:
    matrix, sizes, curve, a_bar, drop, chaudhry = LOGS[name]
    result = dwf.summary(matrix, sizes)
    assert pytest.approx(curve, abs=0.0101) == result.A
    assert result.A_bar == pytest.approx(a_bar, abs=0.01)
    assert pytest.approx(curve[-1], abs=0.0101) == result.A_B
    assert result.forgetting == pytest.approx(drop, abs=0.01)
    assert result.forgetting_chaudhry == pytest.approx(chaudhry, abs=0.01)
    assert result.fwt is None


def test_by_hand() -> None:
    matrix = lower([90.0], [80.0, 70.0], [85.0, 75.0, 60.0])
    result = dwf.summary(matrix, [100, 300, 100])
    assert pytest.approx([90.0, 72.5, (85 + 225 + 60) / 5]) == result.A
    assert result.A_bar == pytest.approx(np.mean(result.A))
    assert result.A[-1] == result.A_B
    assert result.forgetting == pytest.approx((5 + 0) / 2)
    assert result.forgetting_chaudhry == pytest.approx((5 - 5) / 2)
    assert result.bwt == pytest.approx((-5 + 5) / 2)


def test_future_domains_measured() -> None:
    matrix = [[90.0, 40.0, 20.0], [80.0, 70.0, 30.0], [85.0, 75.0, 60.0]]
    ahead = dwf.summary(matrix, [1, 1, 1], baseline=[10.0, 10.0, 10.0], learned_at=[0, 1, 2])
    below = dwf.summary(lower([90.0], [80.0, 70.0], [85.0, 75.0, 60.0]), [1, 1, 1])
    assert (ahead.A, ahead.forgetting, ahead.bwt) == (below.A, below.forgetting, below.bwt)
    assert ahead.fwt == pytest.approx(((40 - 10) + (30 - 10)) / 2)
    # A domain may have been best before it was learned; that is not something that can be forgotten.
    matrix[0][1] = 99.0
    assert dwf.forgetting(matrix, learned_at=[0, 1, 2]) == below.forgetting


def test_single_stage_is_zero() -> None:
    result = dwf.summary([[50.0]], [10])
    assert (result.forgetting, result.forgetting_chaudhry, result.bwt, result.fwt) == (0, 0, 0, 0)
    assert result.A == [50.0]
    assert result.A_bar == result.A_B == 50.0


def test_fixed_test_domains_like_core50() -> None:
    names = ["s3", "s7", "s10"]
    rows = [{"s3": 80.0, "s7": 70.0, "s10": 60.0}, {"s3": 90.0, "s7": 72.0, "s10": 61.0},
            {"s3": 85.0, "s7": 74.0, "s10": 60.0}, {"s3": 86.0, "s7": 73.0, "s10": 60.0}]  # fmt: skip
    result = dwf.summary(dwf.accuracy_matrix(rows, names), [10, 10, 10])
    assert result.A[0] == pytest.approx(70.0)
    assert result.forgetting == pytest.approx((4 + 1 + 1) / 3)
    assert result.forgetting_chaudhry == pytest.approx((4 + 1 + 1) / 3)
    assert result.bwt == pytest.approx((6 + 3 + 0) / 3)


def test_accuracy_matrix() -> None:
    matrix = dwf.accuracy_matrix([{"a": 1.0}, {"b": 2.0, "a": 3.0}], ["a", "b"])
    np.testing.assert_array_equal(matrix, [[1.0, np.nan], [3.0, 2.0]])
    assert dwf.accuracy_matrix([], ["a"]).shape == (0, 1)
    with pytest.raises(ShapeError, match="c, which is none of a, b"):
        dwf.accuracy_matrix([{"c": 1.0}], ["a", "b"])
    with pytest.raises(ShapeError, match="repeat"):
        dwf.accuracy_matrix([], ["a", "a"])


def test_forward_transfer_that_was_not_measured() -> None:
    matrix = lower([90.0], [80.0, 70.0])
    assert dwf.forward_transfer(matrix, [0.0, 0.0], learned_at=[0, 1]) is None
    assert dwf.forward_transfer([[1.0, 30.0], [1.0, 1.0]], None, learned_at=[0, 1]) is None
    assert dwf.forward_transfer([[1.0, 30.0], [1.0, 1.0]], [0.0, 4.0], learned_at=[0, 1]) == 26.0


@pytest.mark.parametrize("seed", range(5))
def test_relations(seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = np.where(np.tri(6, dtype=bool), rng.uniform(0, 100, (6, 6)), np.nan)
    result = dwf.summary(matrix, rng.integers(1, 100, 6).tolist())
    assert result.forgetting >= max(0.0, result.forgetting_chaudhry)
    assert result.forgetting_chaudhry >= -result.bwt
    padded = np.nan_to_num(matrix)  # the official code writes zeros above the diagonal
    reference = np.mean((padded.max(0) - padded[-1])[:-1])
    assert result.forgetting == pytest.approx(reference)


def test_refusals() -> None:
    gap = lower([90.0], [80.0, 70.0])
    gap[1, 0] = np.nan
    with pytest.raises(DuctworkError, match="test domain 1 was not measured after stage 2"):
        dwf.forgetting(gap)
    with pytest.raises(ShapeError, match="n_test"):
        dwf.average_accuracy_at([[1.0, 2.0]], 0, [1])
    with pytest.raises(DuctworkError, match="between 0 and 100"):
        dwf.forgetting([[101.0]])
    with pytest.raises(ShapeError):
        dwf.forgetting([1.0, 2.0])
    with pytest.raises(DuctworkError, match="no accuracy"):
        dwf.average_accuracy_at([[math.nan]], 0, [1])
