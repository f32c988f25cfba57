"""Which projects to fund when their returns are uncertain: a robust knapsack.

python examples/knapsack.py
"""

from __future__ import annotations

import cvxpy as cp
import numpy as np

import wdro_model as wdro


def main() -> None:
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
        total = np.sort(future @ np.rint(x.value))
        changed = f"{'+'.join(sorted(plain - set(funded)))}" or "-"
        print(
            f"{radius:8.1f}{len(funded):8d}{price @ np.rint(x.value):8.0f}{total.mean():8.1f}"
            f"{total[: total.size // 20].mean():10.1f}  {changed}"
        )


if __name__ == "__main__":
    main()
