"""Deterministic assignments: equilibrium, social optimum, all-or-nothing; and how good they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

import cvxpy as cp
import numpy as np
from numpy.typing import ArrayLike

from wdro_model.checks import number
from wdro_model.errors import unknown_name
from wdro_model.problem import Problem
from wdro_model.sets import In
from wdro_model.solve.certify import STATIONARY, Solution
from wdro_model.solve.options import Options, check_time_limit
from wdro_model.solvers import FrankWolfe, LineSearch, Solver, State, Stop
from wdro_model.traffic.beckmann import beckmann, system_cost
from wdro_model.traffic.bushes import Bushes, PowerCosts
from wdro_model.traffic.bushes.run import REACHED, BushLimits, BushRun
from wdro_model.traffic.flows import TrafficFlows
from wdro_model.traffic.flows.paths import PathFlows
from wdro_model.traffic.flows.traffic_flows import has_numba, refuse_without_numba
from wdro_model.traffic.network import Network, as_flow

GAP = 1e-5
"""The relative gap that is certified by default."""
ITERATIONS = 10_000
LINE_TOLERANCE = 0.1
"""Line searches on flows need not be exact: fewer evaluations, and no more iterations."""

AssignmentMethod = Literal["auto", "bushes", "frank_wolfe"]
METHODS = ("auto", "bushes", "frank_wolfe")


class AssignmentOptions(TypedDict, total=False):
    """What a run shows, and the seed of its first direction."""

    seed: int
    verbose: bool
    progress: bool


class FlowAndSolution(NamedTuple):
    """What an assignment unpacks to."""

    flow: np.ndarray
    solution: Solution


class Assignment(FlowAndSolution):
    """A flow (A,) and how it was found: `flow, solution = equilibrium(network)`.

    Examples
    --------
    >>> flow, solution = wdro.traffic.equilibrium(wdro.datasets.sioux_falls(), gap=1e-2)
    >>> flow.shape, solution.status
    ((76,), 'optimal')
    """

    bushes: Bushes | None = None
    """The flows by origin, where they were found on bushes: another run can start from them."""

    def path_flows(self) -> PathFlows:
        """The trips by pair of zones and path; they add up to the flow. Not unique."""
        if self.bushes is None:
            raise ValueError(
                "this assignment was found on links and knows no paths; use method='bushes', or "
                "TrafficFlows.path_flows(flow, times)."
            )
        return self.bushes.path_flows()


Start = Assignment | Solution | ArrayLike


@dataclass(frozen=True)
class Spent:
    """Stops a run whose gap is at most a fraction of <g, x>, g the gradient at the flow x.

    For Beckmann's objective g is the times t, and the fraction the relative gap of traffic
    assignment, (<t, x> - <t, y>) / <t, x>.
    """

    gap: float

    def __call__(self, state: State) -> bool:
        return bool(state.gap <= self.gap * float(state.gradient @ state.x))


@dataclass(frozen=True)
class Purpose:
    """What an assignment minimises.

    loss: as a CVXPY expression; factor(powers): what the congestion of an arc counts in its cost,
    the derivative of the loss; of_value: is the gap a fraction of the loss, and not of <t, x>?
    """

    loss: Callable[..., Any]
    factor: Callable[[np.ndarray], Any]
    of_value: bool

    def costs(self, network: Network) -> PowerCosts:
        """The derivative of the loss, arc by arc."""
        weight = network.free_flow_time * network.b * self.factor(network.power)
        constant = network.free_flow_time + network.fixed_cost
        return PowerCosts.from_capacity(constant, network.capacity, weight, network.power)


SELFISH = Purpose(beckmann, lambda power: 1.0, of_value=False)
SOCIAL = Purpose(system_cost, lambda power: power + 1.0, of_value=True)


def equilibrium(
    network: Network,
    *,
    gap: float = GAP,
    method: AssignmentMethod | str = "auto",
    flows: TrafficFlows | None = None,
    solver: Solver | str | None = None,
    start: Start | None = None,
    time_limit: float | None = None,
    **options: Unpack[AssignmentOptions],
) -> Assignment:
    """The user equilibrium: no traveller has a faster path. It minimises Beckmann's objective.

    Parameters
    ----------
    gap
        The relative gap to certify, `(<t, x> - <t, y>) / <t, x>` with t the times at the flow x and
        y all-or-nothing at t: what travellers could save, as a share of what they spend. The gap
        that the solution reports is relative to the objective, which is smaller than `<t, x>`.
    method
        "bushes" shifts trips between paths, origin by origin (algorithm B): gaps of 1e-10 and less
        in seconds; it needs Numba, `pip install 'wdro_model[fast]'`. "frank_wolfe" works on the
        flows of links, for gaps down to 1e-5 or 1e-6. "auto" takes bushes where Numba is installed.
    flows
        The `sets.TrafficFlows` of the network, to choose its backend or to build it only once. Its
        all-or-nothing flows have the last word on the gap.
    solver
        A solver for "frank_wolfe" (biconjugate directions by default), with its own tolerance.
    start
        An earlier assignment on the same arcs, also for other demand or other times; or flows (A,).
        Bushes go on from the bushes of an assignment, and begin with the times of other flows.
    **options
        `verbose`, `progress` and `seed`, as in `Problem.solve`.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> network = wdro.datasets.sioux_falls()
    >>> flow, solution = wdro.traffic.equilibrium(network, gap=1e-4)
    >>> f"{network.beckmann(flow) / 1e5:.2f}"                # in hours and thousands of vehicles
    '42.31'
    >>> today = wdro.traffic.equilibrium(network)
    >>> later = wdro.traffic.equilibrium(network.scaled_demand(1.05), start=today)
    >>> later.solution.status
    'optimal'
    """
    return _assign(SELFISH, network, gap, method, flows, solver, start, time_limit, options)


def social_optimum(
    network: Network,
    *,
    gap: float = GAP,
    method: AssignmentMethod | str = "auto",
    flows: TrafficFlows | None = None,
    solver: Solver | str | None = None,
    start: Start | None = None,
    time_limit: float | None = None,
    **options: Unpack[AssignmentOptions],
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
    >>> best = wdro.traffic.social_optimum(network, gap=1e-3)
    >>> selfish = wdro.traffic.equilibrium(network, gap=1e-3)
    >>> network.total_cost(best.flow) < network.total_cost(selfish.flow)
    True
    """
    return _assign(SOCIAL, network, gap, method, flows, solver, start, time_limit, options)


def _assign(
    purpose: Purpose,
    network: Network,
    gap: float,
    method: str,
    flows: Any,
    solver: Solver | str | None,
    start: Start | None,
    time_limit: float | None,
    options: AssignmentOptions,
) -> Assignment:
    began = time.perf_counter()
    checked, seconds = Options.from_keywords(options), check_time_limit(time_limit)
    number("gap", gap, low=0)
    costs = purpose.costs(network)
    method = _chosen(method, costs, flows, solver)
    feasible = TrafficFlows(network) if flows is None else flows
    if method == "frank_wolfe":
        stops = [] if purpose.of_value else [Spent(gap)]
        return _on_links(purpose, network, gap, stops, feasible, solver, start, time_limit, options)
    limits = BushLimits(gap, purpose.of_value, seconds)
    return _on_bushes(purpose, network, costs, feasible, limits, start, checked, began)


def _chosen(method: str, costs: PowerCosts, flows: Any, solver: Any) -> str:
    """The method, or an error that says why it cannot be."""
    if method not in METHODS:
        raise ValueError(unknown_name("method", method, METHODS))
    if solver is not None:
        if method == "bushes":
            raise ValueError(
                f"solver={solver!r} was given with method='bushes', which is its own solver; leave "
                "one of them out."
            )
        return "frank_wolfe"
    if method == "bushes":
        refuse_without_numba("method 'bushes'", "method='frank_wolfe'")
        costs.refuse_negative()
    if method != "auto":
        return method
    able = has_numba() and costs.are_nonnegative and isinstance(flows, TrafficFlows | None)
    return "bushes" if able else "frank_wolfe"


# ------------------------------------------------------------------ on links
def _on_links(
    purpose: Purpose,
    network: Network,
    gap: float,
    stops: list[Spent],
    feasible: Any,
    solver: Solver | str | None,
    start: Start | None,
    time_limit: float | None,
    options: AssignmentOptions,
) -> Assignment:
    """Frank-Wolfe with biconjugate directions, or another solver."""
    x = cp.Variable(feasible.dimension, name="flow")
    loss = purpose.loss(x, network.capacity, network.free_flow_time, network.b, network.power)
    if solver is None:
        solver = FrankWolfe(
            gap=gap,
            direction="biconjugate",
            step=LineSearch(LINE_TOLERANCE),
            max_iterations=ITERATIONS,
            callbacks=stops,
        )
    problem = Problem(cp.Minimize(loss + network.fixed_cost @ x), [In(x, feasible)])
    given = None
    if start is not None:
        given = {x: _start_flow(start, network)}
        _refuse_elsewhere(given[x], feasible, network)
    problem.solve(method="erm", solver=solver, time_limit=time_limit, start=given, **options)
    assert problem.solution is not None
    return Assignment(np.array(x.value, dtype=np.float64), _judged(problem.solution, stops, solver))


def _start_flow(start: Start, network: Network) -> np.ndarray:
    """The link flows (A,) of a start."""
    flow: Any = start
    if isinstance(start, FlowAndSolution):
        flow = start.flow
    elif isinstance(start, Solution | Mapping):
        found = start.decision if isinstance(start, Solution) else start
        if len(found) != 1:
            raise ValueError(
                f"start has values of {len(found)} variables, and not of the flows alone; give the "
                "flows (A,)."
            )
        (flow,) = found.values()
    try:
        flow = np.asarray(flow, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"start must be an earlier assignment, its solution, or flows (A,), got {start!r}."
        ) from error
    return as_flow(flow, network, one=True)


def _refuse_elsewhere(flow: np.ndarray, feasible: Any, network: Network) -> None:
    """Raise ValueError where flows do not route the demand: steps from there would lead nowhere."""
    if isinstance(feasible, TrafficFlows) and feasible.is_unbalanced(flow):
        raise ValueError(
            f"start does not route the demand of {network!r}: what enters and leaves its nodes "
            "differs; give flows that do, or use method='bushes', which goes on from an assignment "
            "for other demand."
        )


def _judged(solution: Solution, stops: list[Spent], solver: Any) -> Solution:
    """The solution, called optimal where one of our own tolerances has ended the run."""
    ours = bool(stops) and getattr(solver, "callbacks", None) is stops
    if not ours or solution.stop != Stop.CALLBACK.value:
        return solution
    status = cp.OPTIMAL if solution.convex else STATIONARY
    return replace(solution, status=status, stop=REACHED)


# ------------------------------------------------------------------ on bushes
@dataclass(frozen=True)
class NetworkObjective:
    """The loss and the costs of a purpose, as NumPy has them, for the certificate."""

    network: Network
    purpose: Purpose

    def value(self, flow: np.ndarray) -> float:
        if self.purpose.of_value:
            return self.network.total_cost(flow)
        return self.network.beckmann(flow)

    def costs(self, flow: np.ndarray) -> np.ndarray:
        network = self.network
        with np.errstate(over="ignore", invalid="ignore"):
            load = self.purpose.factor(network.power) * (flow / network.capacity) ** network.power
            return network.free_flow_time * (1.0 + network.b * load) + network.fixed_cost


def _on_bushes(
    purpose: Purpose,
    network: Network,
    costs: PowerCosts,
    feasible: TrafficFlows,
    limits: BushLimits,
    start: Start | None,
    options: Options,
    began: float,
) -> Assignment:
    """Algorithm B, judged by the all-or-nothing flows of the set."""
    objective = NetworkObjective(network, purpose)
    bushes = Bushes(feasible.trips, costs)
    run = BushRun(bushes, objective, feasible.minimize, limits, began)
    solution = run.solve(lambda: _plant(bushes, start, network, objective), options)
    (flow,) = solution.decision.values()
    assignment = Assignment(flow, solution)
    assignment.bushes = bushes
    return assignment


def _plant(
    bushes: Bushes, start: Start | None, network: Network, objective: NetworkObjective
) -> None:
    """The first flows: those of earlier bushes, or trees at the costs of a start, or of none."""
    earlier = getattr(start, "bushes", None)
    if start is None:
        bushes.plant()
    elif earlier is None:
        bushes.plant(objective.costs(_start_flow(start, network)))
    elif not bushes.trips.has_roads_of(earlier.trips):
        raise ValueError(
            f"start is an assignment on other arcs than those of {network!r}; give one on the same "
            "arcs, with the same nodes that may be passed, or leave start out."
        )
    else:
        bushes.adopt(earlier)


# ------------------------------------------------------------------ measures
def all_or_nothing(network: Network, times: ArrayLike, flows: Any = None) -> np.ndarray:
    """The flow (A,) when all trips take a shortest path at fixed times (A,) >= 0.

    Parameters
    ----------
    flows
        The `sets.TrafficFlows` of the network, to choose its backend or to build it only once.

    Examples
    --------
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
    method: AssignmentMethod | str = "auto",
    flows: TrafficFlows | None = None,
    solver: Solver | str | None = None,
    time_limit: float | None = None,
    **options: Unpack[AssignmentOptions],
) -> float:
    """The total cost of the user equilibrium over that of the social optimum, >= 1.

    Parameters
    ----------
    **options
        Those of `equilibrium` and `social_optimum`.

    Examples
    --------
    >>> round(wdro.traffic.price_of_anarchy(wdro.datasets.sioux_falls(), gap=1e-3), 2)
    1.04
    """
    flows = TrafficFlows(network) if flows is None else flows
    selfish, best = (
        network.total_cost(
            find(
                network,
                gap=gap,
                method=method,
                flows=flows,
                solver=solver,
                time_limit=time_limit,
                **options,
            ).flow
        )
        for find in (equilibrium, social_optimum)
    )
    return selfish / best if best else 1.0
