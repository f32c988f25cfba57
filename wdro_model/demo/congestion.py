"""Traffic on Sioux Falls from ten days, judged on days like them and on more congested ones."""

from __future__ import annotations

from functools import partial
from typing import Any

import cvxpy as cp
import numpy as np

import wdro_model as wdro
from wdro_model.datasets import shifted_scenarios, sioux_falls, training_scenarios
from wdro_model.demo.story import Comparison, Instance, Judgement, Story, run_instances, source
from wdro_model.traffic.maps import plot_comparison

TITLE = "Sioux Falls, when congestion gets worse"
UNIT = 1e5
"""Hundredths of an hour times vehicles in a thousand vehicle-hours."""
TESTS = {"days as before": 0.0, "congestion a little worse": 0.5, "congestion worse": 1.0}
"""Severities of the shift."""


def model(network: Any, parameters: Any) -> wdro.Problem:
    flows = wdro.sets.TrafficFlows(network)
    x = cp.Variable(flows.dimension)
    time, alpha, beta = parameters  # free-flow times of the roads, strength and power of congestion
    loss = wdro.traffic.beckmann(x, network.capacity, time, alpha, beta) / UNIT
    ball = wdro.WassersteinBall(1.0, wdro.costs.SquaredEuclidean(weights="standardize"))
    return wdro.Problem(cp.Minimize(loss), [wdro.In(x, flows)], ambiguity=ball)


def decide(problem: wdro.Problem, radii: Any, folds: int, gap: float) -> tuple[Any, Any]:
    problem.solve(method="erm", progress=False)
    chosen = wdro.select_radius(
        problem,
        radii,
        folds,
        rule="one_standard_error",
        method="smoothed",
        solver=wdro.solvers.FrankWolfe(gap=gap),
        progress=False,
    )
    return problem, chosen.problem


def run_instance(
    seed: int, *, days: int, tests: int, radii: tuple[float, ...], folds: int, gap: float
) -> Instance:
    """Training and test days drawn by the seed, the two decisions, and their costs."""
    training = training_scenarios(sioux_falls())
    parameters = training.parameters(days, seed=seed)
    both = decide(model(training.network, parameters), radii, folds, gap)
    judged = {}
    for k, (name, severity) in enumerate(TESTS.items()):
        shifted = shifted_scenarios(sioux_falls(), severity=severity)
        # Seeds of the tests lie apart from those of the training days.
        unseen = shifted.sample(tests, seed=1_000_000 + 10 * seed + k).as_test(*parameters)
        judged[name] = [Judgement.from_losses(p.value, p.losses(unseen)) for p in both]
    flows = [next(iter(p.solution.decision.values())) for p in both]
    return Instance(judged, both[1].radius, flows)


def congestion_story(*, quick: bool, jobs: int, seed: int) -> Story:
    """The story; an instance takes some seconds, most of them for the folds."""
    size: dict[str, Any] = {"days": 10, "tests": 1000, "radii": (0.0, 2.0, 8.0, 32.0)}
    size |= {"folds": 5, "gap": 1e-2}
    count = 4
    if quick:
        size |= {"days": 4, "tests": 50, "radii": (0.0, 8.0), "folds": 2, "gap": 0.1}
        count = 2
    instances = run_instances(
        partial(run_instance, **size), range(seed, seed + count), jobs, "traffic"
    )
    radii = [instance.radius for instance in instances]
    return Story(
        name="traffic",
        title=TITLE,
        question=(
            f"360,600 trips are routed through 76 roads, from {size['days']} days on which "
            "free-flow times and the strength and power of congestion were measured. Costs are "
            "in thousand vehicle-hours. The last two tests have longer times, stronger "
            "congestion and less capacity than any of those days."
        ),
        code=source(model, decide),
        comparisons=tuple(Comparison.on_test(test, instances) for test in TESTS),
        main=len(TESTS) - 1,
        radius=(
            f"Chosen by cross-validation on the {size['days']} days alone among "
            f"{', '.join(f'{r:g}' for r in size['radii'])} (0 is ERM), in units of each number's "
            "own variance. Unshifted days give no reason to be robust; the rule picks the largest "
            "radius whose score is within one standard error of the best. It chose "
            f"{', '.join(f'{r:g}' for r in radii)}."
        ),
        remark=(
            f"Each of the {count} instances has its own training and test days, seeds {seed} to "
            f"{seed + count - 1}. The objective of each robust decision is certified to be within "
            f"{size['gap']:.0%} of the optimum. Its promise is the worst mean cost over the ball, "
            "far above the cost of days like those of the data."
        ),
        picture=partial(draw_flows, instances[0]),
        panels=3,
        caption=(
            "Flows of the first instance: ERM, robust, and the difference. The width of a road is "
            "its flow, the colour flow over capacity."
        ),
    )


def draw_flows(instance: Instance, columns: int) -> Any:
    erm, robust = instance.details
    network = training_scenarios(sioux_falls()).network
    return plot_comparison(network, {"ERM": erm, "robust": np.asarray(robust)}, columns=columns)
