"""Entropic optimal transport at any temperature: what ``transport_plan(solver="log")`` does.

Sinkhorn in the log domain never underflows, but at small ``reg`` it may need millions of sweeps: where two
assignments cost nearly the same, its error falls like 1/k. Five steps make it right:

1. POT's log-domain Sinkhorn from scratch; well-separated classes end here, after a sweep or two.
2. Otherwise the temperature is lowered by halves from the range of the cost down to ``reg``, each one starting
   from the potentials of the last (eps-scaling; Schmitzer, SIAM J. Sci. Comput. 2019).
3. At each temperature a few sweeps are followed by damped Newton steps on the convex semi-dual
   ``F(v) = sum_i mu_i log sum_j exp(v_j - Q_ij / reg) - <nu, v>``, which converge in tens of steps where
   sweeps stall (Sinkhorn-Newton; Brauer, Clason, Lorenz and Wirth, 2017).
4. Should that not converge either (``reg`` at 1e-13 of the cost, where the potentials run out of digits), the exact
   linear programme takes over, provided that ``reg log(n m)``, by which its value can differ from the entropic
   optimum, is under a hundredth of the cost's range.
5. The result is rounded onto the couplings of mu and nu, which moves at most twice its marginal error of mass
   (Altschuler, Weed and Rigollet, NeurIPS 2017, algorithm 2).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["round_to_marginals", "solve_entropic"]

SWEEPS = 11  # at each temperature; POT looks at the error in sweeps 1, 11, 21, ...
NEWTON_STEPS = 100  # at each temperature; 2 to 10 are usual
LONGEST_STEP = 100.0  # in units of the temperature; a plan's entry changes by exp(100)
LP_INSTEAD = 1e-4  # share of the mass off its marginals above which the exact programme is the better answer
WARM_TOLERANCE = 1e-6  # of a temperature that is only passed through


def solve_entropic(
    cost: Tensor, mu: Tensor, nu: Tensor, reg: float, *, max_iter: int, tolerance: float
) -> tuple[Tensor, int]:
    """Minimise ``<T, Q> - reg H(T)`` over the couplings of mu ``[n]`` and nu ``[m]``.

    Returns:
        The plan ``[n, m]``, whose rows sum to mu and whose columns sum to nu as well as ``max_iter`` sweeps
        and steps allowed, and how many of them were made.
    """
    spread = float(cost.max() - cost.min())
    cost = cost - cost.min()  # the plan does not change, the exponents get smaller
    u, v, converged = _sweep(cost, mu, nu, reg, torch.zeros_like(mu), torch.zeros_like(nu), SWEEPS, tolerance)
    used = SWEEPS
    if not converged:
        halvings = max(0, math.ceil(math.log2(spread / reg))) if spread > 0 else 0
        u, v = torch.zeros_like(mu), torch.zeros_like(nu)
        for k in range(halvings, -1, -1):
            temperature = reg * 2.0**k
            goal = tolerance if k == 0 else max(tolerance, WARM_TOLERANCE)
            # Potentials in the unit of the cost carry over; in units of the temperature they double.
            u, v = (2.0 * u, 2.0 * v) if k < halvings else (u, v)
            allowed = max_iter - used
            if allowed <= 0:
                continue
            u, v, converged = _sweep(cost, mu, nu, temperature, u, v, min(SWEEPS, allowed), goal)
            used += min(SWEEPS, allowed)
            if not converged:
                v, steps = _newton(cost / temperature, mu, nu, v, min(NEWTON_STEPS, max_iter - used), goal)
                used += steps
                # POT starts from u alone, so what Newton found has to be told in u.
                u = mu.log() - torch.logsumexp(v[None, :] - cost / temperature, dim=1)
    plan = _plan(cost / reg, mu, v)
    stuck = float((plan.sum(dim=0) - nu).abs().sum()) > LP_INSTEAD
    if stuck and reg * math.log(cost.numel()) < 0.01 * spread:
        import ot

        plan = ot.emd(mu, nu, cost, numItermax=1_000_000)
    return plan, used


def _sweep(
    cost: Tensor, mu: Tensor, nu: Tensor, reg: float, u: Tensor, v: Tensor, sweeps: int, tolerance: float
) -> tuple[Tensor, Tensor, bool]:
    """POT's log-domain Sinkhorn from the potentials u and v (in units of ``reg``)."""
    import ot

    _, log = ot.bregman.sinkhorn_log(
        mu, nu, cost, reg, numItermax=sweeps, stopThr=tolerance, log=True, warn=False, warmstart=(u, v)
    )
    return log["log_u"], log["log_v"], float(log["err"][-1]) < tolerance


def _plan(exponent: Tensor, mu: Tensor, v: Tensor) -> Tensor:
    """The plan ``[n, m]`` of the potential v with rows that sum to mu exactly; ``exponent`` is ``Q / reg``."""
    return mu[:, None] * torch.softmax(v[None, :] - exponent, dim=1)


def _newton(exponent: Tensor, mu: Tensor, nu: Tensor, v: Tensor, steps: int, goal: float) -> tuple[Tensor, int]:
    """Damped Newton on the semi-dual: gradient ``T'1 - nu``, Hessian ``diag(T'1) - T' diag(1/mu) T``."""
    plan, value = _plan(exponent, mu, v), _semi_dual(exponent, mu, nu, v)
    for step in range(max(0, steps)):
        columns = plan.sum(dim=0)
        excess = columns - nu
        if float(excess.norm()) < goal:
            return v, step
        hessian = torch.diag(columns) - plan.T @ (plan / mu[:, None])
        # Adding a constant to v changes nothing, so the Hessian is singular along it, and along every group of
        # classes that exchange no mass: the first is pinned, the others get a ridge below all that matters.
        hessian += columns.mean() / len(v)
        hessian.diagonal().add_(1e-12 * float(columns.max()))
        direction, failed = torch.linalg.solve_ex(hessian, -excess)
        if int(failed) or not bool(direction.isfinite().all()):
            return v, step
        # Where groups hardly exchange mass the model sees no curvature and would leap; far beyond, nothing is known.
        direction = direction * min(1.0, LONGEST_STEP / float(direction.abs().max()))
        slope, length = float(excess @ direction), 1.0
        rounding = 1e-15 * (1.0 + abs(value))
        while True:
            trial = v + length * direction
            trial_value = _semi_dual(exponent, mu, nu, trial)
            if trial_value <= value + 1e-4 * length * slope + rounding:
                break
            length /= 2.0
            if length < 1e-6:  # float64 has no more to give
                return v, step
        v, value, plan = trial, trial_value, _plan(exponent, mu, trial)
    return v, max(0, steps)


def _semi_dual(exponent: Tensor, mu: Tensor, nu: Tensor, v: Tensor) -> float:
    return float(mu @ torch.logsumexp(v[None, :] - exponent, dim=1) - nu @ v)


def round_to_marginals(plan: Tensor, mu: Tensor, nu: Tensor) -> Tensor:
    """Nearest-in-effect coupling of mu and nu: scale down what is too heavy, spread what is then missing.

    The result is at most ``2 (|T1 - mu|_1 + |T'1 - nu|_1)`` away from ``plan`` in L1.
    """
    plan = plan * (mu / plan.sum(dim=1)).nan_to_num(nan=1.0, posinf=1.0).clamp_max(1.0)[:, None]
    plan = plan * (nu / plan.sum(dim=0)).nan_to_num(nan=1.0, posinf=1.0).clamp_max(1.0)[None, :]
    rows = (mu - plan.sum(dim=1)).clamp_min(0.0)
    columns = (nu - plan.sum(dim=0)).clamp_min(0.0)
    missing = float(rows.sum())
    return plan + torch.outer(rows, columns) / missing if missing > 0 else plan
