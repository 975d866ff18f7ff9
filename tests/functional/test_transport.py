"""Plans against POT, SciPy and by their properties; the head by hand."""

import math
from typing import Any

import numpy as np
import ot
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from ductwork import functional as dwf
from ductwork.errors import ShapeError, TransportError
from ductwork.functional.sinkhorn import round_to_marginals

# (n, m), distances of about the size that ViT-B/16 features give (25 to 68)
SHAPES = [(12, 12), (40, 25), (25, 40), (1, 5), (6, 1)]


def centers(seed: int, n: int, m: int, noise: float = 25.0, d: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(max(n, m), d)) * 35 / math.sqrt(2 * d)
    new, old = (common[:k] + rng.normal(size=(k, d)) * noise / math.sqrt(d) for k in (n, m))
    return torch.tensor(new + 20 / math.sqrt(d)), torch.tensor(old)


def cost_of(seed: int, n: int, m: int, noise: float = 25.0) -> Any:
    return dwf.transport_cost(*centers(seed, n, m, noise))


def uniform(n: int) -> Any:
    return np.full(n, 1 / n)


# ---------------------------------------------------------------- cost


def test_cost_equals_scipy() -> None:
    new, old = centers(0, 5, 7)
    np.testing.assert_allclose(dwf.transport_cost(new, old), cdist(new, old), rtol=1e-12)
    np.testing.assert_allclose(dwf.transport_cost(new, old, power=2), cdist(new, old, "sqeuclidean"), rtol=1e-12)
    assert dwf.transport_cost(new.float(), old.float()).dtype == torch.float64


def test_cost_of_equal_centers_is_exactly_zero() -> None:
    new, _ = centers(0, 30, 30)
    assert torch.equal(dwf.transport_cost(new.float(), new.float()).diagonal(), torch.zeros(30).double())


def test_median_scale() -> None:
    new, old = centers(0, 5, 8)
    scaled = dwf.transport_cost(new, old, scale="median")
    assert float(np.median(scaled)) == pytest.approx(1.0)
    torch.testing.assert_close(dwf.transport_cost(9 * new, 9 * old, scale="median"), scaled)
    # Two classes, the same domain twice: the zeros must not become the unit.
    assert dwf.transport_cost(new[:2], new[:2], scale="median").amax() == pytest.approx(1.0)
    assert torch.equal(dwf.transport_cost(new[:1], new[:1], scale="median"), torch.zeros(1, 1).double())


# ---------------------------------------------------------------- plan


@pytest.mark.parametrize("reg", [100.0, 1.0, 0.1, 0.01])
@pytest.mark.parametrize(("n", "m"), SHAPES)
def test_log_gives_a_plan(n: int, m: int, reg: float) -> None:
    cost = cost_of(n, n, m)
    found = dwf.transport_plan(cost, reg=reg)
    plan = found.plan.numpy()
    assert found.plan.dtype == torch.float64
    assert plan.shape == (n, m)
    assert (plan >= 0).all()
    np.testing.assert_allclose(plan.sum(1), 1 / n, atol=1e-14)
    np.testing.assert_allclose(plan.sum(0), 1 / m, atol=1e-14)
    assert plan.sum() == pytest.approx(1.0, abs=1e-12)
    assert found.residual < 1e-6
    assert found.marginal_error < 1e-12
    assert found.cost == pytest.approx(float((plan * cost.numpy()).sum()))
    assert found.entropy == pytest.approx(-sum(p * math.log(p) for p in plan.flat if p > 0))
    # The value of the entropic optimum is within reg log(nm) of the exact one.
    exact = ot.emd2(uniform(n), uniform(m), cost.numpy())
    assert exact - 1e-9 <= found.cost <= exact + reg * math.log(n * m) + 1e-9


@pytest.mark.parametrize("reg", [3.0, 6.0, 50.0])
@pytest.mark.parametrize(("n", "m"), SHAPES[:3])
def test_log_equals_plain_and_pot(n: int, m: int, reg: float) -> None:
    cost = cost_of(1, n, m, noise=5.0)
    log = dwf.transport_plan(cost, reg=reg).plan
    plain = dwf.transport_plan(cost, reg=reg, solver="plain", max_iter=2_000).plan
    pot = ot.sinkhorn(uniform(n), uniform(m), cost.numpy(), reg, method="sinkhorn_log", numItermax=2_000)
    np.testing.assert_allclose(log, plain, atol=2e-9)
    np.testing.assert_allclose(log, pot, atol=2e-9)


@pytest.mark.parametrize("seed", range(3))
def test_log_is_the_optimum_where_sweeps_stall(seed: int) -> None:
    """A coupling is the entropic optimum if and only if log T + Q / reg is a sum of a row and a column term."""
    cost, reg = cost_of(seed, 12, 10, noise=30.0), 0.2
    _, log = ot.sinkhorn(uniform(12), uniform(10), cost.numpy(), reg, method="sinkhorn_log", log=True, warn=False)
    found = dwf.transport_plan(cost, reg=reg)
    assert found.residual < 1e-8
    assert found.iterations < 400
    z = np.log(np.maximum(found.plan.numpy(), 1e-300)) + cost.numpy() / reg
    mixed = z[:-1, :-1] - z[1:, :-1] - z[:-1, 1:] + z[1:, 1:]
    t = found.plan.numpy()
    heavy = np.minimum.reduce([t[:-1, :-1], t[1:, :-1], t[:-1, 1:], t[1:, 1:]]) > 1e-6
    assert abs(mixed[heavy]).max(initial=0.0) < 1e-3
    assert log["niter"] > 0


def test_small_reg_that_pot_does_not_solve() -> None:
    cost = cost_of(0, 40, 25, noise=30.0)
    pot = ot.sinkhorn(uniform(40), uniform(25), cost.numpy(), 0.01, method="sinkhorn_log", warn=False)
    assert abs(pot.sum(0) - 1 / 25).sum() > 1e-4, "this test is about costs on which 1000 sweeps do not suffice"
    found = dwf.transport_plan(cost, reg=0.01)
    assert found.residual < 1e-7
    exact = ot.emd2(uniform(40), uniform(25), cost.numpy())
    assert found.cost == pytest.approx(exact, abs=0.01 * math.log(1000))


@pytest.mark.parametrize("reg", [5e-5, 1e-8, 1e-12, 1e-14])
@pytest.mark.parametrize(("n", "m"), [(40, 39), (40, 25)])
def test_tiny_reg_always_gives_a_plan(n: int, m: int, reg: float) -> None:
    """Chains of small flows (n classes to n - 1), and cost / reg beyond what float64 can resolve."""
    cost = cost_of(2, n, m, noise=15.0)
    found = dwf.transport_plan(cost, reg=reg)
    assert found.marginal_error < 1e-12
    assert found.cost == pytest.approx(ot.emd2(uniform(n), uniform(m), cost.numpy()), abs=1e-3)
    if reg > 1e-6:
        assert found.residual < 1e-7
        assert found.iterations < 400


@pytest.mark.parametrize("solver", ["log", "plain"])
def test_large_reg_is_uniform(solver: Any) -> None:
    found = dwf.transport_plan(cost_of(0, 9, 6), reg=1e9, solver=solver)
    np.testing.assert_allclose(found.plan, 1 / 54, atol=1e-9)
    assert found.entropy == pytest.approx(math.log(54))


@pytest.mark.parametrize("seed", range(5))
def test_small_reg_is_the_assignment(seed: int) -> None:
    cost = cost_of(seed, 15, 15)
    rows, columns = linear_sum_assignment(cost.numpy())
    assignment = np.zeros((15, 15))
    assignment[rows, columns] = 1 / 15
    for found in (dwf.transport_plan(cost, reg=1e-3), dwf.transport_plan(cost, reg=1.0, solver="emd")):
        np.testing.assert_allclose(found.plan, assignment, atol=1e-9)
    assert found.entropy == pytest.approx(math.log(15))


def test_same_domain_twice_moves_nothing() -> None:
    new, _ = centers(0, 20, 20)
    found = dwf.transport_plan(dwf.transport_cost(new, new), reg=0.1)
    np.testing.assert_allclose(20 * found.plan, np.eye(20), atol=1e-12)
    assert found.cost == pytest.approx(0.0, abs=1e-12)
    head = torch.randn(20, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(dwf.transport_head(0 * head, head, found.plan, 1.0, scale="barycentric"), head)


def test_given_marginals() -> None:
    mu = torch.tensor([0.5, 0.3, 0.2])
    nu = torch.tensor([0.9, 0.1])
    for solver in ("log", "plain", "emd"):
        found = dwf.transport_plan(cost_of(0, 3, 2), reg=1.0, mu=mu, nu=nu, solver=solver)
        np.testing.assert_allclose(found.plan.sum(1), mu, atol=1e-6)
        np.testing.assert_allclose(found.plan.sum(0), nu, atol=1e-6)


def test_constant_shift_and_order_of_classes() -> None:
    cost = cost_of(3, 10, 8)
    plan = dwf.transport_plan(cost, reg=0.5).plan
    torch.testing.assert_close(dwf.transport_plan(cost + 1e4, reg=0.5).plan, plan, atol=1e-8, rtol=0)
    order = torch.randperm(10, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(dwf.transport_plan(cost[order], reg=0.5).plan, plan[order], atol=1e-8, rtol=0)


@pytest.mark.parametrize("reg", [0.01, 0.03])
def test_underflow_raises(reg: float, recwarn: pytest.WarningsRecorder) -> None:
    cost = cost_of(0, 30, 30)
    assert cost.max() / reg > 745
    with pytest.raises(TransportError, match=r"solver='plain'.*use solver='log' or raise reg"):
        dwf.transport_plan(cost, reg=reg, solver="plain")
    assert dwf.transport_plan(cost, reg=reg).marginal_error < 1e-12
    assert not [w for w in recwarn if "ot" in str(w.filename)], "POT's warnings end in the error"


def test_every_kind_of_false_plan_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    cost, good = torch.ones(2, 2), torch.full((2, 2), 0.25)
    false = {
        "all zeros": torch.zeros(2, 2),
        "NaN": torch.tensor([[0.25, float("nan")], [0.25, 0.25]]),
        "infinite": torch.tensor([[0.25, float("inf")], [0.25, 0.25]]),
        "negative": torch.tensor([[0.6, -0.1], [-0.1, 0.6]]),
        "marginals": torch.tensor([[0.5, 0.1], [0.1, 0.3]]),
    }
    for fault, plan in false.items():
        monkeypatch.setattr(ot, "sinkhorn", lambda *args, plan=plan, **kwargs: (plan.double(), {}))
        with pytest.raises(TransportError, match=fault):
            dwf.transport_plan(cost, reg=1.0, solver="plain")
    monkeypatch.setattr(ot, "sinkhorn", lambda *args, **kwargs: (good.double(), {}))
    assert dwf.transport_plan(cost, reg=1.0, solver="plain").marginal_error == 0


def test_too_few_iterations_raise() -> None:
    with pytest.raises(TransportError, match="raise max_iter or reg"):
        dwf.transport_plan(cost_of(0, 40, 25, noise=30.0), reg=0.3, max_iter=12)


@pytest.mark.parametrize(
    ("cost", "kwargs", "error", "match"),
    [
        (torch.tensor([[1.0, 2.0], [math.nan, math.nan]]), {}, TransportError, r"2 entries.*rows: \[1\]"),
        (torch.tensor([[1.0, math.inf]]), {}, TransportError, r"columns: \[1\]"),
        (torch.ones(2, 2), {"reg": 0.0}, TransportError, "emd"),
        (torch.ones(2, 2), {"reg": math.nan}, TransportError, "positive"),
        (torch.ones(2, 2), {"solver": "fast"}, TransportError, "'fast'"),
        (torch.ones(2), {}, ShapeError, "matrix"),
        (torch.ones(0, 2), {}, ShapeError, "non-empty"),
        (torch.ones(2, 2), {"mu": torch.tensor([1.0, 0.0])}, TransportError, "mu must be positive"),
        (torch.ones(2, 2), {"nu": torch.tensor([1.0, 1.0])}, TransportError, "sums to 2"),
        (torch.ones(2, 2), {"nu": torch.ones(3) / 3}, ShapeError, r"nu must be \[2\]"),
    ],
)
def test_refusals(cost: Any, kwargs: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        dwf.transport_plan(cost, **({"reg": 1.0} | kwargs))


@pytest.mark.parametrize("seed", range(5))
def test_rounding(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mu, nu = (torch.tensor(rng.dirichlet(np.ones(k))) for k in (6, 9))
    rough = torch.tensor(rng.random((6, 9))) / 27
    rough[0] = 0
    plan = round_to_marginals(rough, mu, nu)
    assert (plan >= 0).all()
    torch.testing.assert_close(plan.sum(1), mu, atol=1e-14, rtol=0)
    torch.testing.assert_close(plan.sum(0), nu, atol=1e-14, rtol=0)
    off = (rough.sum(1) - mu).abs().sum() + (rough.sum(0) - nu).abs().sum()
    assert (plan - rough).abs().sum() <= 2 * off + 1e-12
    torch.testing.assert_close(round_to_marginals(plan, mu, nu), plan, atol=1e-14, rtol=0)


# ---------------------------------------------------------------- head


def heads(n: int = 5, m: int = 7, d: int = 11) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(m, d, generator=generator), torch.randn(n, d, generator=generator)


@pytest.mark.parametrize("scale", ["plan", "barycentric", "norm"])
def test_alpha_zero_leaves_the_old_head(scale: Any) -> None:
    old, new = heads()
    result = dwf.transport_head(old, new, torch.full((5, 7), 1 / 35), 0.0, scale=scale)
    assert torch.equal(result, old)
    assert result is not old


def test_head_equals_eq_10_in_numpy() -> None:
    old, new = heads()
    plan = dwf.transport_plan(cost_of(0, 5, 7), reg=2.0).plan
    w_o, w_n, t = (
        old.numpy().T.astype(float),
        new.numpy().T.astype(float),
        plan.numpy(),
    )  # columns, as in the paper
    expected = 0.6 * w_o + 0.4 * w_n @ t
    np.testing.assert_allclose(dwf.transport_head(old, new, plan, 0.4), expected.T, rtol=1e-5, atol=1e-6)
    expected = 0.6 * w_o + 0.4 * 7 * w_n @ t
    moved = dwf.transport_head(old, new, plan, 0.4, scale="barycentric")
    np.testing.assert_allclose(moved, expected.T, rtol=1e-5, atol=1e-6)
    assert moved.dtype == torch.float32


def test_barycentric_permutation() -> None:
    _, new = heads(6, 6)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(1))
    permutation = torch.eye(6).double()[order]
    moved = dwf.transport_head(torch.zeros(6, 11), new, permutation / 6, 1.0, scale="barycentric")
    torch.testing.assert_close(moved, (permutation.T @ new.double()).float())
    literal = dwf.transport_head(torch.zeros(6, 11), new, permutation / 6, 1.0)
    torch.testing.assert_close(6 * literal, moved)


def test_norm_keeps_lengths_and_turns() -> None:
    old, new = heads()
    plan = dwf.transport_plan(cost_of(0, 5, 7), reg=2.0).plan
    moved = dwf.transport_head(1e-13 * old, 1e3 * new, plan, 1.0, scale="norm")
    torch.testing.assert_close(moved.norm(dim=1), 1e-13 * old.norm(dim=1), rtol=1e-5, atol=0)
    barycentric = dwf.transport_head(old, new, plan, 1.0, scale="barycentric")
    torch.testing.assert_close(torch.cosine_similarity(1e13 * moved, barycentric), torch.ones(7))


def test_head_refusals() -> None:
    old, new = heads()
    with pytest.raises(ShapeError, match=r"\[5, 7\].*got \[7, 5\]"):
        dwf.transport_head(old, new, torch.ones(7, 5), 0.5)
    with pytest.raises(ShapeError, match="classifiers"):
        dwf.transport_head(old, new[:, :3], torch.ones(5, 7), 0.5)
    with pytest.raises(TransportError, match=r"columns \[0, 1"):
        dwf.transport_head(old, new, torch.zeros(5, 7), 0.5, scale="barycentric")
    with pytest.raises(TransportError, match="scale"):
        dwf.transport_head(old, new, torch.ones(5, 7), 0.5, scale="other")  # type: ignore[arg-type]


def test_plan_entropy() -> None:
    assert dwf.plan_entropy(torch.full((4, 4), 1 / 16)) == pytest.approx(math.log(16))
    assert dwf.plan_entropy(torch.eye(4) / 4) == pytest.approx(math.log(4))
