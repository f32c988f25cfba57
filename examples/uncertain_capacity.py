"""Uncertain capacity on a road network, solved exactly: where robust flows pay, and where not.

Weather takes capacity from all links, incidents half of some; the demand has another level every
day. With a fixed exponent the loss is affine in what is uncertain. On steep and crowded roads
robust flows are better on days that were not seen; on a light network they only cost.

python examples/uncertain_capacity.py [picture.png]
"""

from __future__ import annotations

import sys

import cvxpy as cp
import numpy as np

import wdro_model as wdro

RADII = (0.0, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


def gains(network: wdro.traffic.Network, days: int) -> np.ndarray:
    """Mean and worst 5% on 1000 other days, against those of ERM, for each radius (R, 2)."""
    law = wdro.traffic.TrafficDays(network, incident=0.03, incident_capacity=0.5)
    uncertain = wdro.traffic.UncertainNetwork(network, **law.sample(days, seed=0).conditions())
    test = uncertain.as_test(**law.sample(1000, seed=1).conditions())
    time, delay = network.free_flow_time, network.free_flow_time * network.b
    weights = {uncertain.time: 1 / time**2, uncertain.delay: 1 / delay**2}
    flows, x = wdro.sets.TrafficFlows(network), cp.Variable(network.n_arcs, name="flow")
    found = []
    for radius in RADII:
        ball = wdro.WassersteinBall(radius, wdro.costs.SquaredEuclidean(weights=weights))
        problem = wdro.Problem(
            cp.Minimize(uncertain.beckmann(x) / 1e5), [wdro.In(x, flows)], ambiguity=ball
        )
        problem.solve("exact" if radius else "erm", solver=wdro.solvers.FrankWolfe(gap=1e-4))
        losses = np.sort(problem.losses(test))
        found.append((losses.mean(), losses[-50:].mean()))
    return np.array(found) / found[0] - 1.0


def main(picture: str | None = None) -> None:
    network = wdro.datasets.sioux_falls()
    cases = {
        "exponent 6": gains(network.replace(power=6.0), 5),
        "exponent 4": gains(network, 5),
        "half the demand": gains(network.scaled_demand(0.5), 5),
    }
    print("against ERM on 1000 days that were not seen: mean, worst 5%")
    print(f"{'radius':>8s}" + "".join(f"{name:>22s}" for name in cases))
    for k, radius in enumerate(RADII):
        cells = "".join(f"{found[k, 0]:+14.1%}{found[k, 1]:+8.1%}" for found in cases.values())
        print(f"{radius:8g}{cells}")
    if picture is not None:
        draw(cases, picture)


def draw(cases: dict[str, np.ndarray], picture: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, column, title in zip(
        figure.subplots(1, 2, sharey=True), (0, 1), ("mean", "worst 5%")
    ):
        for name, found in cases.items():
            axes.plot(RADII[1:], 100 * found[1:, column], "o-", label=name)
        axes.axhline(0.0, color="grey", lw=1)
        axes.set(xscale="log", xlabel="radius", title=f"{title} on other days")
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("loss against ERM, %")
    figure.axes[0].legend(frameon=False)
    figure.savefig(picture, dpi=150)


if __name__ == "__main__":
    main(*sys.argv[1:2])
