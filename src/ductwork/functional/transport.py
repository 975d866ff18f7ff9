"""Optimal transport of old classifiers: the cost, the plan (Eq. 9) and the interpolation (Eq. 10).

Shapes: ``n`` classes of the new domain (the rows of a plan, mu_1 in the paper), ``m`` classes of an old
domain (its columns, mu_2), ``d`` features. The two domains need not have the same classes, nor as many.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ductwork.errors import ShapeError, TransportError
from ductwork.functional.sinkhorn import round_to_marginals, solve_entropic

__all__ = ["TransportPlan", "plan_entropy", "transport_cost", "transport_head", "transport_plan"]

Solver = Literal["log", "plain", "emd"]
HeadScale = Literal["plan", "barycentric", "norm"]


@dataclass(frozen=True, eq=False)
class TransportPlan:
    """A coupling that has been checked, and what there is to say about it.

    Attributes:
        plan: ``[n, m]`` float64, non-negative, rows sum to mu and columns to nu.
        cost: <T, Q>, in the unit of the cost.
        entropy: ``-sum T log T`` in nats, from ``log max(n, m)`` (one class to one) to ``log(n m)`` (uniform).
        marginal_error: ``|T 1 - mu|_1 + |T' 1 - nu|_1`` of ``plan``: a share of the mass, which is 1.
        residual: the same before rounding (solver "log"); how far the solver was from convergence.
        iterations: sweeps and Newton steps, over all temperatures (0 where the solver does not tell).
    """

    plan: Tensor
    cost: float
    entropy: float
    marginal_error: float
    residual: float
    iterations: int


def transport_cost(
    new_centers: Tensor,
    old_centers: Tensor,
    *,
    power: Literal[1, 2] = 1,
    scale: Literal["median"] | None = None,
) -> Tensor:
    """Cost ``Q_ij = |c_i - c_j|_2 ** power`` between the classes of two domains (text below Eq. 9).

    The paper prints the squared distance (``power=2``), the published results used the distance itself.

    Args:
        new_centers: ``[n, d]`` class centres of the new domain in the pre-trained space.
        old_centers: ``[m, d]`` class centres of an old domain in the same space.
        power: 1 for the Euclidean distance, 2 for its square.
        scale: "median" divides by the median of the positive entries, so that ``reg`` means the same for
            every backbone. Zeros are left out: they say that the domains are the same, not how far apart
            classes are, and with two classes they would be the median.

    Returns:
        ``[n, m]`` float64.
    """
    if new_centers.ndim != 2 or old_centers.ndim != 2 or new_centers.shape[1] != old_centers.shape[1]:
        raise ShapeError(
            f"class centres must be [n, d] and [m, d], got {list(new_centers.shape)} and {list(old_centers.shape)}"
        )
    if power not in (1, 2):
        raise TransportError(f"power must be 1 (distance) or 2 (squared distance), got {power}")
    # The matrix-product shortcut would give equal centres a distance of about 1e-7 rather than 0.
    cost = torch.cdist(new_centers.double(), old_centers.double(), compute_mode="donot_use_mm_for_euclid_dist")
    if power == 2:
        cost = cost.square()
    if scale is None:
        return cost
    if scale != "median":
        raise TransportError(f"scale must be 'median' or None, got {scale!r}")
    positive = cost[cost > 0].sort().values
    k = len(positive)
    return 2.0 * cost / (positive[(k - 1) // 2] + positive[k // 2]) if k else cost


def plan_entropy(plan: Tensor) -> float:
    """Entropy ``-sum T_ij log T_ij`` of a plan ``[n, m]``, in nats, with ``0 log 0 = 0``."""
    return float(torch.special.entr(plan.double()).sum())


def transport_plan(
    cost: Tensor,
    *,
    reg: float,
    solver: Solver = "log",
    mu: Tensor | None = None,
    nu: Tensor | None = None,
    max_iter: int = 1000,
    tolerance: float = 1e-9,
    marginal_tolerance: float = 1e-3,
) -> TransportPlan:
    """Solve Eq. 9, ``min <T, Q>`` over couplings of mu and nu, entropically smoothed by ``reg``.

    * "log" (default) reaches the entropic optimum at any ``reg > 0`` and always returns an exact coupling;
      see :mod:`ductwork.functional.sinkhorn` for how.
    * "plain" is POT's Sinkhorn-Knopp as it is. It works on ``exp(-Q / reg)``, which is 0 in float64 once
      ``Q / reg`` exceeds about 745; it is here to reproduce results that were obtained with it.
    * "emd" is the exact linear programme, ``reg = 0``. ``reg`` and ``max_iter`` are not used.

    Args:
        cost: ``[n, m]``, finite.
        reg: entropic regularisation, in the unit of the cost.
        solver: see above.
        mu: ``[n]`` positive weights of the new classes that sum to 1; uniform by default, as in the paper.
        nu: ``[m]``, likewise for the old classes.
        max_iter: bound on all iterations together.
        tolerance: the solver stops when the marginals are this close.
        marginal_tolerance: the largest violation of the marginals, in L1, that is accepted from a solver
            (for "log" before the plan is rounded onto the marginals).

    Raises:
        TransportError: the cost is not finite, or the solver returned what is not a plan. Such a plan is
            never handed on: used in Eq. 10 an all-zero plan would quietly scale the old classifier.
    """
    cost = _checked_cost(cost, reg, solver)
    mu = _checked_marginal(mu, cost.shape[0], "mu", cost)
    nu = _checked_marginal(nu, cost.shape[1], "nu", cost)
    complaints: list[str] = []
    if solver == "log":
        plan, iterations = solve_entropic(cost, mu, nu, reg, max_iter=max_iter, tolerance=tolerance)
    else:
        plan, iterations, complaints = _solve_with_pot(cost, mu, nu, reg, solver, max_iter, tolerance)
    residual = _check_plan(plan, mu, nu, cost, reg, solver, marginal_tolerance, complaints)
    if solver == "log":
        plan = round_to_marginals(plan, mu, nu)
    return TransportPlan(
        plan=plan,
        cost=float((plan * cost).sum()),
        entropy=plan_entropy(plan),
        marginal_error=_marginal_error(plan, mu, nu),
        residual=residual,
        iterations=iterations,
    )


def transport_head(old: Tensor, new: Tensor, plan: Tensor, alpha: float, *, scale: HeadScale = "plan") -> Tensor:
    """Interpolate the old classifier with the transported new one (Eq. 10), rows being classes.

    * "plan": ``(1 - alpha) W_o + alpha T' W_n`` as printed. The plan sums to 1, so a transported row is about
      ``m`` times shorter than a row of ``W_n``, and a cosine classifier hardly notices it.
    * "barycentric": each transported row is divided by the mass of its column (times ``m`` for uniform
      marginals): a weighted mean of the new rows.
    * "norm": the barycentric row at the length of the old row, so that ``alpha`` says how far to turn
      whatever the lengths are.

    Args:
        old: ``[m, d]`` rows ``W_o`` of one old domain.
        new: ``[n, d]`` rows ``W_n`` of the new domain.
        plan: ``[n, m]`` coupling from :func:`transport_plan`.
        alpha: ``alpha_W``; 0 returns ``old``.
        scale: see above.

    Returns:
        ``[m, d]`` in the type of ``old``; computed in float64.
    """
    if old.ndim != 2 or new.ndim != 2 or old.shape[1] != new.shape[1]:
        raise ShapeError(f"classifiers must be [m, d] and [n, d], got {list(old.shape)} and {list(new.shape)}")
    if plan.shape != (new.shape[0], old.shape[0]):
        raise ShapeError(
            f"the plan must be [n, m] = {[new.shape[0], old.shape[0]]} for these classifiers, got {list(plan.shape)}"
        )
    if scale not in ("plan", "barycentric", "norm"):
        raise TransportError(f"scale must be 'plan', 'barycentric' or 'norm', got {scale!r}")
    if alpha == 0:
        return old.clone()
    plan = plan.to(old.device, torch.float64)
    kept = old.double()
    moved = plan.T @ new.to(old.device, torch.float64)
    if scale != "plan":
        mass = plan.sum(dim=0)
        if not bool((mass > 0).all()):
            empty = torch.nonzero(mass <= 0).flatten().tolist()
            raise TransportError(f"columns {empty} of the plan have no mass, so there is nothing to rescale")
        moved = moved / mass[:, None]
    if scale == "norm":
        length = moved.norm(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
        moved = moved / length * kept.norm(dim=1, keepdim=True)
    return ((1.0 - alpha) * kept + alpha * moved).to(old.dtype)


def _checked_cost(cost: Tensor, reg: float, solver: str) -> Tensor:
    if cost.ndim != 2 or 0 in cost.shape:
        raise ShapeError(f"the cost must be a non-empty [n, m] matrix, got {list(cost.shape)}")
    if solver not in ("log", "plain", "emd"):
        raise TransportError(f"unknown solver {solver!r}: use 'log', 'plain' or 'emd'")
    if solver != "emd" and not 0 < reg < float("inf"):
        raise TransportError(f"reg must be a positive number, got {reg}: use solver='emd' for reg = 0")
    cost = cost.detach().double()
    wrong = ~cost.isfinite()
    if bool(wrong.any()):
        rows, columns = (torch.nonzero(wrong.all(dim=dim)).flatten().tolist() for dim in (1, 0))
        raise TransportError(
            f"the cost has {int(wrong.sum())} entries that are NaN or infinite (whole rows: {rows}, whole columns: "
            f"{columns}): leave out classes without an image before computing it"
        )
    return cost


def _checked_marginal(weights: Tensor | None, size: int, name: str, cost: Tensor) -> Tensor:
    if weights is None:
        return torch.full((size,), 1.0 / size, dtype=torch.float64, device=cost.device)
    if weights.shape != (size,):
        raise ShapeError(f"{name} must be [{size}] for a cost of {list(cost.shape)}, got {list(weights.shape)}")
    weights = weights.detach().to(cost.device, torch.float64)
    total = float(weights.sum())
    if not (bool((weights > 0).all()) and abs(total - 1.0) < 1e-6):
        raise TransportError(f"{name} must be positive and sum to 1 (it sums to {total:g}): drop classes of weight 0")
    return weights / total


def _solve_with_pot(
    cost: Tensor, mu: Tensor, nu: Tensor, reg: float, solver: str, max_iter: int, tolerance: float
) -> tuple[Tensor, int, list[str]]:
    """Plan, iterations and what POT complained of; its warnings end here, the check decides."""
    import ot

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if solver == "emd":
            plan, log = ot.emd(mu, nu, cost, numItermax=1_000_000, log=True)
        else:
            plan, log = ot.sinkhorn(
                mu, nu, cost, reg, method="sinkhorn", numItermax=max_iter, stopThr=tolerance, log=True
            )
    iterations = int(log["niter"]) + 1 if "niter" in log else 0
    return (
        plan.to(cost.device, torch.float64),
        iterations,
        [str(item.message).split("\n")[0] for item in caught],
    )


def _marginal_error(plan: Tensor, mu: Tensor, nu: Tensor) -> float:
    return float((plan.sum(dim=1) - mu).abs().sum() + (plan.sum(dim=0) - nu).abs().sum())


def _check_plan(
    plan: Tensor,
    mu: Tensor,
    nu: Tensor,
    cost: Tensor,
    reg: float,
    solver: str,
    allowed: float,
    complaints: list[str],
) -> float:
    """The L1 error of the marginals, if ``plan`` is a plan; a ``TransportError`` otherwise."""
    mass = float(plan.sum())
    error = _marginal_error(plan, mu, nu)
    if not bool(plan.isfinite().all()):
        fault = "has NaN or infinite entries"
    elif bool((plan < 0).any()):
        fault = "has negative entries"
    elif mass < 1e-12:
        fault = "is all zeros"
    elif error > allowed:
        fault = f"misses its marginals by {error:.2g} of the mass (allowed: {allowed:g})"
    else:
        return error
    if solver == "plain":
        advice = f"cost/reg reaches {float(cost.max()) / reg:.4g} and exp(-745) is 0: use solver='log' or raise reg"
    elif solver == "log":
        advice = "raise max_iter or reg"
    else:
        advice = "use solver='log'"
    said = f" (POT: {'; '.join(complaints)})" if complaints else ""
    raise TransportError(f"the transport plan of solver={solver!r}, reg={reg:g} {fault}; {advice}{said}")
