"""Deterministic assignments: equilibrium, social optimum, all-or-nothing; and how good they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Unpack

import cvxpy as cp
import numpy as np
from numpy.typing import ArrayLike

from wdro_model.problem import Problem
from wdro_model.sets import In
from wdro_model.solve.certify import STATIONARY, Solution
from wdro_model.solve.options import SolveOptions
from wdro_model.solvers import FrankWolfe, LineSearch, Solver, State, Stop
from wdro_model.traffic.beckmann import beckmann, system_cost
from wdro_model.traffic.flows import TrafficFlows
from wdro_model.traffic.network import Network, as_flow

GAP = 1e-5
"""The relative gap that is certified by default."""
ITERATIONS = 10_000
LINE_TOLERANCE = 0.1
"""Line searches on flows need not be exact: fewer evaluations, and no more iterations."""
REACHED = "the relative gap is under the tolerance"


class Assignment(NamedTuple):
    """A flow (A,) and how it was found.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> flow, solution = wdro.traffic.equilibrium(wdro.datasets.sioux_falls(), gap=1e-2)
    >>> flow.shape, solution.status
    ((76,), 'optimal')
    """

    flow: np.ndarray
    solution: Solution


@dataclass(frozen=True)
class Spent:
    """Stops a run whose gap is at most a fraction of <g, x>, g the gradient at the flow x.

    For Beckmann's objective g is the times t, and the fraction the relative gap of traffic
    assignment, (<t, x> - <t, y>) / <t, x>.
    """

    gap: float

    def __call__(self, state: State) -> bool:
        return bool(state.gap <= self.gap * float(state.gradient @ state.x))


def equilibrium(
    network: Network,
    *,
    gap: float = GAP,
    flows: TrafficFlows | None = None,
    solver: Solver | str | None = None,
    time_limit: float | None = None,
    **options: Unpack[SolveOptions],
) -> Assignment:
    """The user equilibrium: no traveller has a faster path. It minimises Beckmann's objective.

    Parameters
    ----------
    gap
        The relative gap to certify, `(<t, x> - <t, y>) / <t, x>` with t the times at the flow x and
        y all-or-nothing at t: what travellers could save, as a share of what they spend. The gap
        that the solution reports is relative to the objective, which is smaller than `<t, x>`.
    flows
        The `sets.TrafficFlows` of the network, to choose its backend or to build it only once.
    solver
        By default Frank-Wolfe with biconjugate directions; another one has its own tolerance.
    **options
        Those of `Problem.solve`.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> network = wdro.datasets.sioux_falls()
    >>> flow, solution = wdro.traffic.equilibrium(network, gap=1e-4)
    >>> f"{network.beckmann(flow) / 1e5:.2f}"                # in hours and thousands of vehicles
    '42.31'
    """
    return _assign(beckmann, network, gap, [Spent(gap)], flows, solver, time_limit, options)


def social_optimum(
    network: Network,
    *,
    gap: float = GAP,
    flows: TrafficFlows | None = None,
    solver: Solver | str | None = None,
    time_limit: float | None = None,
    **options: Unpack[SolveOptions],
) -> Assignment:
    """The flow of least total cost, sum_a t_a(x) x_a.

    Parameters
    ----------
    gap
        The Frank-Wolfe gap to certify, as a fraction of the total cost.
    **options
        And all else as in `equilibrium`.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> network = wdro.datasets.sioux_falls()
    >>> best = wdro.traffic.social_optimum(network, gap=1e-3)
    >>> selfish = wdro.traffic.equilibrium(network, gap=1e-3)
    >>> network.total_cost(best.flow) < network.total_cost(selfish.flow)
    True
    """
    return _assign(system_cost, network, gap, [], flows, solver, time_limit, options)


def _assign(
    cost: Callable[..., Any],
    network: Network,
    gap: float,
    stops: list[Spent],
    flows: Any,
    solver: Solver | str | None,
    time_limit: float | None,
    options: SolveOptions,
) -> Assignment:
    feasible = TrafficFlows(network) if flows is None else flows
    x = cp.Variable(feasible.dimension, name="flow")
    loss = cost(x, network.capacity, network.free_flow_time, network.b, network.power)
    if solver is None:
        solver = FrankWolfe(
            gap=gap,
            direction="biconjugate",
            step=LineSearch(LINE_TOLERANCE),
            max_iterations=ITERATIONS,
            callbacks=stops,
        )
    problem = Problem(cp.Minimize(loss + network.fixed_cost @ x), [In(x, feasible)])
    problem.solve(method="erm", solver=solver, time_limit=time_limit, **options)
    assert problem.solution is not None
    return Assignment(np.array(x.value, dtype=np.float64), _judged(problem.solution, stops, solver))


def _judged(solution: Solution, stops: list[Spent], solver: Any) -> Solution:
    """The solution, called optimal where one of our own tolerances has ended the run."""
    ours = bool(stops) and getattr(solver, "callbacks", None) is stops
    if not ours or solution.stop != Stop.CALLBACK.value:
        return solution
    status = cp.OPTIMAL if solution.convex else STATIONARY
    return replace(solution, status=status, stop=REACHED)


# ------------------------------------------------------------------ measures
def all_or_nothing(network: Network, times: ArrayLike, flows: Any = None) -> np.ndarray:
    """The flow (A,) when all trips take a shortest path at fixed times (A,) >= 0.

    Parameters
    ----------
    flows
        The `sets.TrafficFlows` of the network, to choose its backend or to build it only once.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> network = wdro.datasets.sioux_falls()
    >>> flow = wdro.traffic.all_or_nothing(network, network.free_flow_time)
    >>> float(flow @ network.free_flow_time)                  # nobody is in anybody's way
    3176000.0
    """
    return (TrafficFlows(network) if flows is None else flows).minimize(times)


def relative_gap(network: Network, flow: ArrayLike, flows: Any = None) -> float:
    """`(<t, x> - <t, y>) / <t, x>`, with t the times at the flow x, and y all-or-nothing at t.

    The share of their time that travellers would save if all took a shortest path and times stayed:
    0 at equilibrium.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> network = wdro.datasets.sioux_falls()
    >>> flow, _ = wdro.traffic.equilibrium(network, gap=1e-4)
    >>> wdro.traffic.relative_gap(network, flow) <= 1e-4
    True
    """
    x = as_flow(flow, network, one=True)
    times = network.travel_time(x)
    spent = float(times @ x)
    least = float(times @ all_or_nothing(network, times, flows))
    return (spent - least) / spent if spent else 0.0


def price_of_anarchy(
    network: Network,
    *,
    gap: float = GAP,
    flows: TrafficFlows | None = None,
    solver: Solver | str | None = None,
    time_limit: float | None = None,
    **options: Unpack[SolveOptions],
) -> float:
    """The total cost of the user equilibrium over that of the social optimum, >= 1.

    Parameters
    ----------
    **options
        Those of `equilibrium` and `social_optimum`.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> round(wdro.traffic.price_of_anarchy(wdro.datasets.sioux_falls(), gap=1e-3), 2)
    1.04
    """
    flows = TrafficFlows(network) if flows is None else flows
    selfish, best = (
        network.total_cost(
            find(
                network, gap=gap, flows=flows, solver=solver, time_limit=time_limit, **options
            ).flow
        )
        for find in (equilibrium, social_optimum)
    )
    return selfish / best if best else 1.0
