"""A robust portfolio: exact worst-case return against the plain average, on data held out.

python examples/portfolio.py [picture.png]
"""

from __future__ import annotations

import sys

import cvxpy as cp
import numpy as np

import wdro_model as wdro


def main(picture: str | None = None) -> None:
    rng = np.random.default_rng(0)
    mean, spread = np.linspace(0.02, 0.10, 10), np.linspace(0.05, 0.60, 10)
    train = mean + spread * rng.standard_normal((30, 10))
    test = mean + spread * rng.standard_normal((5000, 10))

    x = cp.Variable(10, nonneg=True, name="x")
    returns = wdro.UncertainParameter(10, name="returns", samples=train)
    problem = wdro.Problem(
        cp.Minimize(-returns @ x),
        [cp.sum(x) == 1],
        ambiguity=wdro.WassersteinBall(radius=0.1),
    )
    print(problem.explain(), "\n")
    report = wdro.compare(problem, methods=("erm", "exact"), test=test)
    print(report, "\n")
    for judged in report.methods:
        print(f"{judged.name:6} weights {np.round(judged.solution.decision[x], 2)}")
    if picture is not None:
        report.plot(picture)


if __name__ == "__main__":
    main(*sys.argv[1:2])
