"""Which projects to fund when their returns are uncertain: a robust knapsack.

python examples/knapsack.py [picture.png]
"""

from __future__ import annotations

import sys

import cvxpy as cp
import numpy as np

import wdro_model as wdro


def main(picture: str | None = None) -> None:
    rng = np.random.default_rng(1)
    count = 30
    price = rng.integers(5, 40, count)
    mean = price * rng.uniform(0.8, 1.6, count)
    spread = mean * rng.uniform(0.05, 1.2, count)
    projects = wdro.sets.Knapsack(
        price, capacity=200, items=[f"P{i:02d}" for i in range(count)], mandatory=["P00"]
    )

    def seasons(number: int) -> np.ndarray:
        return mean + spread * rng.standard_normal((number, count))

    x = cp.Variable(count, name="x")
    returns = wdro.UncertainParameter(count, name="returns", samples=seasons(15))
    history, future = returns.samples, seasons(5000)
    print(f"{'radius':>8}{'funded':>8}{'price':>8}{'mean':>8}{'worst 5%':>10}  instead of")
    plain: set[str] = set()
    chosen = {}
    for radius in (0.0, 1.0, 10.0, 40.0):
        returns = wdro.UncertainParameter(count, name="returns", samples=history)
        problem = wdro.Problem(
            cp.Minimize(-returns @ x),
            [wdro.In(x, projects)],
            ambiguity=wdro.WassersteinBall(
                radius, wdro.costs.SquaredEuclidean(weights="standardize")
            ),
        )
        problem.solve()
        problem.round()
        funded = projects.selected(x.value)
        plain = plain or set(funded)
        chosen[radius] = x.value > 0.5
        total = np.sort(future @ np.rint(x.value))
        changed = f"{'+'.join(sorted(plain - set(funded)))}" or "-"
        print(
            f"{radius:8.1f}{len(funded):8d}{price @ np.rint(x.value):8.0f}{total.mean():8.1f}"
            f"{total[: total.size // 20].mean():10.1f}  {changed}"
        )
    if picture is not None:
        draw(spread / price, mean / price, price, chosen, picture)


def draw(risk: np.ndarray, gain: np.ndarray, price: np.ndarray, chosen: dict, picture: str) -> None:
    """The projects by return and risk, those that are funded without robustness and with it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 4.0), layout="constrained")
    for axes, radius in zip(figure.subplots(1, 2, sharey=True), (0.0, 40.0)):
        colours = np.where(chosen[radius], "#d55e00" if radius else "#0072b2", "#dddddd")
        axes.scatter(risk, gain, s=8 * price, c=colours, ec="w")
        axes.set(title=f"funded at radius {radius:g}", xlabel="deviation per unit of price")
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("return per unit of price")
    figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    main(*sys.argv[1:2])
