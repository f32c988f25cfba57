"""A portfolio with two risks: its CVaR, costs of trading included, and a limit on crashes.

python examples/risk_budget.py [picture.png]
"""

from __future__ import annotations

import sys

import cvxpy as cp
import numpy as np

import wdro_model as wdro

ASSETS, DAYS = 6, 60


def main(picture: str | None = None) -> None:
    rng = np.random.default_rng(3)
    mean, spread = np.linspace(0.0, 0.02, ASSETS), np.linspace(0.02, 0.08, ASSETS)
    exposure = np.linspace(0.05, 0.30, ASSETS)  # of each asset to a crash

    def days(count: int) -> tuple[np.ndarray, np.ndarray]:
        market = rng.standard_t(4, size=(count, 1))
        returns = mean + spread * (0.4 * market + 0.6 * rng.standard_t(4, size=(count, ASSETS)))
        return returns, exposure * rng.gamma(4.0, 0.25, size=(count, ASSETS))

    seen, future = days(DAYS), days(20_000)
    returns = wdro.UncertainParameter(ASSETS, name="returns", samples=seen[0])
    crash = wdro.UncertainParameter(ASSETS, name="crash", samples=seen[1])
    test = {returns: future[0], crash: future[1]}
    x = cp.Variable(ASSETS, nonneg=True, name="x")
    held = np.full(ASSETS, 1 / ASSETS)
    objective = -returns @ x + wdro.cvar(-returns @ x, 0.9) + 0.002 * cp.norm1(x - held)
    limit = wdro.cvar(crash @ x, 0.8) <= 0.15
    chosen = cp.Variable(ASSETS, boolean=True, name="chosen")
    three = [wdro.In(chosen, wdro.sets.Subsets(ASSETS, k=3)), x <= chosen]

    print(f"{'assets':<8}{'radius':>8}{'promise':>9}{'risk':>8}{'crash':>8}  decision")
    found = {}
    for name, more in {"any": [], "three": three}.items():
        problem = wdro.Problem(
            cp.Minimize(objective),
            [cp.sum(x) == 1, limit, *more],
            ambiguity=wdro.WassersteinBall(0.002, wdro.costs.Norm(2)),
        )
        for radius in (0.0, 0.002, 0.005):
            twin = problem.with_radius(radius)
            promise, judged = twin.solve(), twin.evaluate(test)
            [crashed] = judged.constraints
            found[name, radius] = x.value
            numbers = f"{radius:8.3f}{promise:9.4f}{judged.risk:8.4f}{crashed.value:8.4f}"
            print(f"{name:<8}{numbers}  {x.value.round(2)}")
    print("risk and crash: on 20,000 days to come; the limit of the crash is 0.15")
    if picture is not None:
        draw(found, picture)


def draw(found: dict[tuple[str, float], np.ndarray], picture: str) -> None:
    """The decisions as bars, one panel for all assets and one for three of them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    colours = ("#888888", "#0072b2", "#d55e00")
    for axes, name in zip(panels, ("any", "three")):
        radii = [radius for kind, radius in found if kind == name]
        for k, (radius, colour) in enumerate(zip(radii, colours)):
            places = np.arange(ASSETS) + 0.27 * (k - 1)
            axes.bar(places, found[name, radius], 0.25, color=colour, label=f"radius {radius:g}")
        axes.set(title=f"{name} assets", xlabel="asset, the riskiest last", xticks=range(ASSETS))
    panels[0].set_ylabel("share")
    panels[1].legend(frameon=False)
    figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    main(*sys.argv[1:2])
