"""Does a radius with a guarantee do what it says? Many draws of the data from a law that is known.

A newsvendor with demands between 0 and 100, for rule "rate": how often the law lies in the ball. A
regression with exact labels, for rule "profile": how often the true coefficients are defended by a
law in the ball. Beside both, the radius by cross-validation. How often did each promise hold?

python examples/radius_coverage.py [--quick] [--output FOLDER]
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

import cvxpy as cp
import numpy as np
from scipy.optimize import minimize
from scipy.stats import beta

import wdro_model as wdro
from wdro_model.display.figures import COLOURS, new_figure, save

CONFIDENCE = 0.9
DEMAND = beta(2, 3, scale=100)
"""The law of the demand."""
SLOPE, DEVIATION, NOISE = np.array([1.0, -0.5, 0.0]), np.array([1.0, 2.0, 1.0]), 0.5
"""Labels are features @ SLOPE + noise, the features independent and normal."""


# ------------------------------------------------------------------ a newsvendor, rule "rate"
def newsvendor(rng: np.random.Generator, size: int) -> dict[str, dict[str, float]]:
    """Radius, promise, true risk and distance of the law, for each way to the radius."""
    samples = DEMAND.rvs(size, random_state=rng)
    order = cp.Variable(nonneg=True)
    demand = wdro.UncertainParameter(samples=samples, support=wdro.supports.Box(0, 100))
    loss = order - 3 * cp.minimum(order, demand)  # buy at 1, sell at 3
    ball = wdro.WassersteinBall(1.0, wdro.costs.Norm())
    problem = wdro.Problem(cp.Minimize(loss), [order <= 100], ambiguity=ball)
    grid = [0.0, 0.3, 1.0, 3.0, 10.0, 30.0]
    ways = {
        "rate": wdro.radius_for(problem, CONFIDENCE, "rate"),
        "5-fold": wdro.select_radius(problem, grid, refit=False, progress=False).radius,
    }
    points = np.linspace(0, 100, 20001)
    share = np.searchsorted(np.sort(samples), points, side="right") / size
    distance = np.trapezoid(np.abs(share - DEMAND.cdf(points)), points)
    found = {}
    for name, radius in ways.items():
        chosen = problem.with_radius(radius)
        promise = chosen.solve()
        sold = np.trapezoid(DEMAND.sf(points[points <= order.value]), dx=points[1])
        found[name] = {
            "radius": chosen.radius,
            "promise": promise,
            "risk": float(order.value - 3 * sold),
            "needed": float(distance),
        }
    return found


# ------------------------------------------------------------------ a regression, rule "profile"
def regression(rng: np.random.Generator, size: int) -> dict[str, dict[str, float]]:
    """The same, what is needed being the profile of the true coefficients."""
    features = rng.normal(0.0, DEVIATION, size=(size, 3))
    labels = features @ SLOPE + rng.normal(0.0, NOISE, size=size)
    x = cp.Variable(3)
    a = wdro.UncertainParameter(3, "a", samples=features)
    b = wdro.UncertainParameter(name="b", samples=labels)
    exact_labels = wdro.costs.SquaredEuclidean(weights={a: 1.0, b: np.inf})
    ball = wdro.WassersteinBall(0.1, exact_labels)
    problem = wdro.Problem(cp.Minimize(cp.square(b - a @ x)), ambiguity=ball)
    grid = [0.0, 0.0003, 0.001, 0.003, 0.01, 0.03]
    ways = {
        "profile": wdro.radius_for(problem, CONFIDENCE, "profile"),
        "5-fold": wdro.select_radius(problem, grid, refit=False, progress=False).radius,
    }
    needed, found = profile(features, labels), {}
    for name, radius in ways.items():
        chosen = problem.with_radius(radius)
        promise = chosen.solve()
        error = DEVIATION * (x.value - SLOPE)
        found[name] = {
            "radius": chosen.radius,
            "promise": promise,
            "risk": float(NOISE**2 + error @ error),
            "needed": needed,
        }
    return found


def profile(features: np.ndarray, labels: np.ndarray) -> float:
    """The least transport cost at which the true slope has the least squares, by its dual."""

    def dual(price: np.ndarray) -> float:
        form = np.outer(SLOPE, price) + np.outer(price, SLOPE)
        values, vectors = np.linalg.eigh(form)
        if values[-1] >= 1.0:
            return np.inf
        slopes = (2 * features @ form - 2 * np.outer(labels, price)) @ vectors
        start = np.einsum("ki,ij,kj->k", features, form, features)
        start -= 2 * labels * (features @ price)
        return float(np.mean(start + (slopes**2 / (4 * (1 - values))).sum(axis=1)))

    found = minimize(dual, np.zeros(3), method="Nelder-Mead", options={"fatol": 1e-12})
    return -float(found.fun)


# ------------------------------------------------------------------ all of it
CASES = {"newsvendor": (newsvendor, (30, 300)), "regression": (regression, (50, 200))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--output", type=Path, default=Path())
    given = parser.parse_args()
    repetitions = 8 if given.quick else 200
    print(f"{repetitions} repetitions, confidence {CONFIDENCE:g}")
    print(f"{'':10}  {'N':>5}  {'radius by':9}  {'mean':>9}  enough  kept  promise   risk")
    needed: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    for case, (trial, sizes) in CASES.items():
        for size in sizes:
            seeds = np.random.SeedSequence(size).spawn(repetitions)
            runs = [trial(np.random.default_rng(seed), size) for seed in seeds]
            for name in runs[0]:
                columns = {key: np.array([run[name][key] for run in runs]) for key in runs[0][name]}
                radius, promise, risk = (columns[k] for k in ("radius", "promise", "risk"))
                enough, kept = columns["needed"] <= radius, risk <= promise + 1e-6
                print(
                    f"{case:10}  {size:5d}  {name:9}  {radius.mean():9.4f}  {enough.mean():6.2f}  "
                    f"{kept.mean():4.2f}  {promise.mean():7.3f}  {risk.mean():.3f}"
                )
                if name in ("rate", "profile"):
                    needed[case][f"N = {size}"] = columns["needed"] / radius
    draw(needed, given.output / "radius_coverage.png")


def draw(needed: dict[str, dict[str, np.ndarray]], path: Path) -> None:
    """The radius that was needed as a share of the radius that was found, draw by draw."""
    titles = {
        "newsvendor": "distance of the law, as a share of the radius by 'rate'",
        "regression": "profile of the truth, as a share of the radius by 'profile'",
    }
    figure = new_figure(9.0, 3.2)
    for axes, (case, shares) in zip(figure.subplots(1, len(needed)), needed.items()):
        for k, (label, values) in enumerate(shares.items()):
            ordered, levels = np.sort(values), np.arange(1, len(values) + 1) / len(values)
            axes.step(ordered, levels, where="post", color=COLOURS[k], label=label)
        axes.axvline(1.0, color="#777777", linewidth=0.8)
        axes.axhline(CONFIDENCE, color="#777777", linewidth=0.8, linestyle=":")
        axes.set_xlim(0, max(1.1, axes.get_xlim()[1]))
        axes.set_title(titles[case], fontsize="small")
        axes.set_ylabel("share of the draws")
        axes.legend(frameon=False, loc="lower center")
    save(figure, path)


if __name__ == "__main__":
    main()
