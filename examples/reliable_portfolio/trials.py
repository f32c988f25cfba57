"""One run of an experiment: draw samples, decide, and hold the promise against the true risk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import cvxpy as cp
import numpy as np

import wdro_model as wdro
from market import ASSETS, AVERSION, TAIL, returns, risk

RADII = (0.0, *(b * 10.0**c for c in (-3, -2, -1) for b in range(1, 10)))
"""Those of the paper: 0 and b 10^c for b = 1, ..., 9 and c = -3, -2, -1."""
GRID = (*(b * 10.0**c for c in (-3, -2, -1) for b in (1, 2, 3, 5)), 1.0)
"""Those that a radius is chosen from."""
CONFIDENCE = 0.9
RULES = ("erm", "hold-out", "5-fold", "5-fold, averaged", "bootstrap")
"""ERM; the best radius on a fifth of the samples; over five folds; the mean of the best radii of
the folds, as in the paper; the smallest radius whose promise is kept in 90% of the resamples."""


def problem(data: np.ndarray) -> tuple[cp.Variable, wdro.Problem]:
    """Mean and CVaR over a ball of the 1-norm, the level of the tail being a decision t."""
    x, t = cp.Variable(ASSETS, nonneg=True, name="x"), cp.Variable(name="t")
    xi = wdro.UncertainParameter(ASSETS, "returns", samples=data)
    loss = -xi @ x + AVERSION * (t + cp.pos(-xi @ x - t) / TAIL)
    ball = wdro.WassersteinBall(0.01, wdro.costs.Norm(1))
    return x, wdro.Problem(cp.Minimize(loss), [cp.sum(x) == 1], ambiguity=ball)


def sampled(seed: int, size: int, run: int) -> np.ndarray:
    """The training data of a run: the same for all experiments."""
    return returns(np.random.default_rng([seed, size, run]), size)


# ------------------------------------------------------------------ experiments
def along_radii(data: np.ndarray, _: int) -> dict[str, Any]:
    """Portfolio, promise and true risk at every radius."""
    x, robust = problem(data)
    path = robust.path(RADII, progress=False)
    weights = np.array([s.decision[x] for s in path.solutions if s is not None])
    return {
        "weights": weights.round(6).tolist(),
        "promise": path.values.tolist(),
        "risk": risk(weights).tolist(),
    }


def by_rules(data: np.ndarray, resamples: int) -> dict[str, Any]:
    """Radius, promise and true risk of the portfolio that each rule comes to."""
    x, robust = problem(data)
    best = selected(robust, folds=1, holdout=0.2)
    folds = selected(robust, folds=5)
    certain = wdro.radius_for(
        robust, CONFIDENCE, "bootstrap", radii=GRID, resamples=resamples, progress=False
    )
    radii = {
        "erm": 0.0,
        "hold-out": best.radius,
        "5-fold": folds.radius,
        "5-fold, averaged": folds.radii[np.argmin(folds.scores, axis=0)].mean(),
        "bootstrap": certain,
    }
    return {name: decided(x, robust.with_radius(radius)) for name, radius in radii.items()}


def selected(robust: wdro.Problem, **how: Any) -> wdro.evaluation.RadiusSelection:
    """The radius with the smallest mean loss on samples that were held out."""
    return wdro.select_radius(robust, radii=(0.0, *GRID), refit=False, progress=False, **how)


def decided(x: cp.Variable, chosen: wdro.Problem) -> dict[str, float]:
    """What a problem with its radius chosen promises, and the truth."""
    value = chosen.solve(progress=False)
    return {"radius": chosen.radius, "promise": value, "risk": float(risk(np.array(x.value)))}


EXPERIMENTS: Mapping[str, Callable[[np.ndarray, int], dict[str, Any]]] = {
    "radius": along_radii,
    "rules": by_rules,
}
