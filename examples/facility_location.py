"""Which depots to open when demand is uncertain: Boolean decisions, priced by the worst case.

python examples/facility_location.py [picture.png]
"""

from __future__ import annotations

import sys

import cvxpy as cp
import numpy as np

import wdro_model as wdro

SITES, TOWNS, SURGE = 6, 12, 50


def main(picture: str | None = None) -> None:
    rng = np.random.default_rng(2)
    site, town = rng.uniform(0, 10, (SITES, 2)), rng.uniform(0, 10, (TOWNS, 2))
    distance = np.linalg.norm(site[:, None] - town, axis=2)
    rent = rng.uniform(25, 40, SITES)
    usual = rng.uniform(2, 8, TOWNS)

    def years(count: int) -> np.ndarray:
        return usual * rng.lognormal(0, 0.5, (count, TOWNS))

    opened = cp.Variable(SITES, boolean=True, name="opened")
    share = cp.Variable((SITES, TOWNS), nonneg=True, name="share")
    rules = [cp.sum(share, axis=0) == 1, share <= opened[:, None]]
    history, future = years(10), years(5000)

    plans = {}
    print(f"{'radius':>8}{'opened':>10}{'data':>8}{'worst case':>12}{'mean':>8}{'surge':>8}")
    for radius in (0.0, 5.0, 15.0, 30.0):
        demand = wdro.UncertainParameter(TOWNS, name="demand", samples=history)
        transport = cp.sum(cp.multiply(distance, share), axis=0) @ demand
        problem = wdro.Problem(
            cp.Minimize(rent @ opened + transport),
            rules,
            ambiguity=wdro.WassersteinBall(radius, wdro.costs.Norm(1)),
        )
        worst = problem.solve(method="exact" if radius else "erm")
        sites = " ".join(str(i) for i in np.flatnonzero(opened.value > 0.5))
        to_town = np.sum(distance * share.value, axis=0)
        plans[radius] = opened.value > 0.5, share.value
        mean = np.mean(rent @ opened.value + future @ to_town)
        surge = mean + SURGE * to_town.max()  # where it hurts most
        data = problem.solution.empirical_value
        print(f"{radius:8.1f}{sites:>10}{data:8.1f}{worst:12.1f}{mean:8.1f}{surge:8.1f}")
    print(f"surge: the mean if one town asks for {SURGE} more")
    if picture is not None:
        draw(site, town, usual, {r: plans[r] for r in (0.0, 30.0)}, picture)


def draw(site: np.ndarray, town: np.ndarray, usual: np.ndarray, plans: dict, picture: str) -> None:
    """Depots and the towns that they serve, without robustness and with it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 4.5), layout="constrained")
    for axes, (radius, (opened, share)) in zip(figure.subplots(1, 2), plans.items()):
        for i, j in np.argwhere(share > 1e-3):
            axes.plot(*zip(site[i], town[j]), color="#888888", lw=3 * share[i, j], zorder=1)
        axes.scatter(*town.T, s=15 * usual, color="#0072b2", label="town", zorder=2)
        axes.scatter(*site[~opened].T, s=70, marker="s", fc="w", ec="#888888", label="closed")
        axes.scatter(*site[opened].T, s=110, marker="s", color="#d55e00", label="depot", zorder=3)
        axes.set(title=f"radius {radius:g}", xticks=[], yticks=[], aspect="equal")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    main(*sys.argv[1:2])
