"""Robust traffic on Sioux Falls: flows from 50 optimistic scenarios, judged on worse ones.

    python examples/robust_traffic.py [--quick] [--output DIRECTORY]

Training scenarios have shorter free-flow times and milder congestion (alpha, beta) than the tests,
whose severity grows. ERM minimises the mean over the training scenarios, WDRO the worst mean over a
Wasserstein ball around them; "best" are the flows that minimise the mean over the test scenarios
themselves. What WDRO recovers is (ERM - WDRO) / (ERM - best), in mean losses.

With --output the maps and curves of docs/guides/traffic.md are written there. The full run takes
some minutes, mostly for the cross-validation of the radius; --quick has fewer scenarios and no
folds.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np

import wdro_model as wdro
from wdro_model.datasets import shifted_scenarios, sioux_falls, training_scenarios

UNIT = 1e5
"""Hundredths of an hour times vehicles in a thousand vehicle-hours, the unit of all losses."""
BETA = "beta + 2"
"""The name of the test in which only the exponent moves, by two units."""


@dataclass(frozen=True)
class Settings:
    """The size of the experiment."""

    scenarios: int = 50
    tests: int = 1000
    radii: tuple[float, ...] = (1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 80.0)
    severities: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    gap: float = 1e-3
    folds: int = 5
    """0 takes the middle radius without a cross-validation."""


QUICK = Settings(scenarios=5, tests=50, radii=(5.0,), severities=(0.0, 1.0), gap=0.02, folds=0)


@dataclass(frozen=True)
class Flows:
    """A decision and its mean losses."""

    name: str
    flow: np.ndarray
    training: float
    tests: Mapping[str, float]


class Experiment:
    """The model, the tests, and the best flows for each of them."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        training = training_scenarios(sioux_falls())
        self.network = training.network
        parameters = training.parameters(settings.scenarios, seed=0)
        flows = wdro.sets.TrafficFlows(self.network)
        self.x = cp.Variable(flows.dimension, name="flow")
        loss = wdro.traffic.beckmann(self.x, self.network.capacity, *parameters) / UNIT
        # Times, alpha and beta have different units: each is measured in its own deviations.
        cost = wdro.costs.SquaredEuclidean(weights="standardize")
        self.problem = wdro.Problem(
            cp.Minimize(loss),
            [wdro.In(self.x, flows)],
            ambiguity=wdro.WassersteinBall(settings.radii[0], cost),
        )
        laws = {f"severity {s:g}": {"severity": s} for s in settings.severities}
        laws[BETA] = {"alpha_shift": 0.0, "time_shift": 0.0, "capacity_loss": 0.0}
        self.tests = {
            name: shifted_scenarios(sioux_falls(), **law)
            .sample(settings.tests, seed=1 + k)
            .as_test(*parameters)
            for k, (name, law) in enumerate(laws.items())
        }
        self.best = {name: self._least(test) for name, test in self.tests.items()}

    def _least(self, test: Any) -> float:
        """The mean loss of the flows that are optimal for the test scenarios."""
        exact = wdro.solvers.FrankWolfe(gap=1e-5, max_iterations=5000)
        return self.problem.with_samples(test).solve(method="erm", solver=exact)

    def solved(self, name: str, problem: wdro.Problem, **arguments: Any) -> Flows:
        """The flows of one solve, judged on all scenarios."""
        problem.solve(**arguments)
        means = {test: float(problem.losses(rows).mean()) for test, rows in self.tests.items()}
        return Flows(name, self.x.value, float(problem.losses().mean()), means)

    def erm(self) -> Flows:
        exact = wdro.solvers.FrankWolfe(gap=1e-5, max_iterations=5000)
        return self.solved("ERM", self.problem, method="erm", solver=exact)

    def robust(self) -> dict[float, Flows]:
        """WDRO at every radius, each from the flows at the one before."""
        found, last = {}, None
        for radius in self.settings.radii:
            problem = self.problem.with_radius(radius)
            solver = wdro.solvers.FrankWolfe(gap=self.settings.gap)
            name = f"WDRO, radius {radius:g}"
            found[radius] = self.solved(name, problem, method="smoothed", solver=solver, start=last)
            last = problem.solution
        return found

    def chosen_radius(self) -> float:
        """The largest radius whose score is within one standard error of the best."""
        radii = self.settings.radii
        if not self.settings.folds:
            return radii[len(radii) // 2]
        selection = wdro.select_radius(
            self.problem,
            [0.0, *radii],
            folds=self.settings.folds,
            rule="one_standard_error",
            method="smoothed",
            solver=wdro.solvers.FrankWolfe(gap=3 * self.settings.gap),
            refit=False,
        )
        print(selection, "\n")
        return selection.radius or radii[0]

    def recovered(self, test: str, erm: Flows, robust: Flows) -> float:
        """The share of ERM's excess over the best flows that is avoided."""
        return (erm.tests[test] - robust.tests[test]) / (erm.tests[test] - self.best[test])


def radius_table(experiment: Experiment, erm: Flows, robust: Sequence[Flows]) -> str:
    """What each radius costs on the training scenarios, and what it recovers."""
    lines = [f"{'':18}{'training':>10}{'price':>9}" + _heads(experiment)]
    for flows in (erm, *robust):
        price = 100.0 * (flows.training / erm.training - 1.0)
        shares = (experiment.recovered(test, erm, flows) for test in _shifted(experiment))
        lines.append(
            f"{flows.name:18}{flows.training:10.3f}{price:8.2f}%"
            + "".join(f"{100.0 * share:24.1f}%" for share in shares)
        )
    return "\n".join(lines)


def severity_table(experiment: Experiment, erm: Flows, robust: Flows) -> str:
    """Mean losses on all tests."""
    lines = [f"{'test':16}{'ERM':>10}{'WDRO':>10}{'best':>10}{'ERM excess':>13}{'WDRO excess':>13}"]
    for test, best in experiment.best.items():
        worse = [100.0 * (flows.tests[test] / best - 1.0) for flows in (erm, robust)]
        lines.append(
            f"{test:16}{erm.tests[test]:10.3f}{robust.tests[test]:10.3f}{best:10.3f}"
            f"{worse[0]:12.2f}%{worse[1]:12.2f}%"
        )
    return "\n".join(lines)


def _shifted(experiment: Experiment) -> list[str]:
    """The two tests whose recovered shares are shown: all shifts, and beta alone."""
    *_, severest, beta = experiment.tests
    return [severest, beta]


def _heads(experiment: Experiment) -> str:
    return "".join(f"{f'recovered, {test}':>25}" for test in _shifted(experiment))


# ------------------------------------------------------------------ pictures
def draw(
    experiment: Experiment, erm: Flows, robust: Mapping[float, Flows], radius: float, folder: Path
) -> None:
    """The maps and the curves."""
    folder.mkdir(parents=True, exist_ok=True)
    severest = shifted_scenarios(sioux_falls())
    network = severest.network.replace(
        capacity=severest.capacity_factor * severest.network.capacity
    )
    chosen = robust[radius]
    maps = {"ERM": erm.flow, "robust": chosen.flow}
    figure = wdro.traffic.plot_comparison(network, maps)
    figure.savefig(folder / "robust_traffic_map.png", dpi=100)
    draw_curves(experiment, erm, robust, radius, folder / "robust_traffic_curves.png")
    print(f"pictures in {folder}")


def draw_curves(
    experiment: Experiment, erm: Flows, robust: Mapping[float, Flows], radius: float, path: Path
) -> None:
    """Excess over the best flows by severity; recovered share and price by radius."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    severities = experiment.settings.severities
    for flows, colour in ((erm, "#0072b2"), (robust[radius], "#d55e00")):
        tests = [f"severity {s:g}" for s in severities]
        excess = [100.0 * (flows.tests[t] / experiment.best[t] - 1.0) for t in tests]
        left.plot(severities, excess, "o-", color=colour, label=flows.name)
    left.set(
        xlabel="severity of the shift",
        ylabel="mean loss above the best flows (%)",
        title="Tests of growing severity",
    )
    radii = list(robust)
    for test, colour in zip(_shifted(experiment), ("#009e73", "#d55e00")):
        shares = [100.0 * experiment.recovered(test, erm, robust[r]) for r in radii]
        right.plot(radii, shares, "o-", color=colour, label=f"recovered, {test}")
    prices = [100.0 * (robust[r].training / erm.training - 1.0) for r in radii]
    right.plot(radii, prices, "s--", color="#cc79a7", label="price on training scenarios")
    right.axvline(radius, color="#888888", lw=1.0, ls=":", label="chosen by cross-validation")
    right.set(xscale="log", xlabel="radius", ylabel="%", ylim=(0, 105), title="What a radius buys")
    right.set_xticks(radii, [f"{r:g}" for r in radii])
    right.minorticks_off()
    for axes in (left, right):
        axes.legend(frameon=False, fontsize="small")
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a small version, some seconds")
    parser.add_argument("--output", type=Path, help="a directory for the pictures")
    arguments = parser.parse_args()
    experiment = Experiment(QUICK if arguments.quick else Settings())
    print(experiment.problem.explain(method="smoothed"), "\n")
    erm, robust = experiment.erm(), experiment.robust()
    print(radius_table(experiment, erm, list(robust.values())), "\n")
    radius = experiment.chosen_radius()
    print(f"radius {radius:g}, mean losses in thousand vehicle-hours:")
    print(severity_table(experiment, erm, robust[radius]))
    if arguments.output is not None:
        draw(experiment, erm, robust, radius, arguments.output)


if __name__ == "__main__":
    main()
