"""Deterministic assignments: equilibrium, social optimum, all-or-nothing; and measures of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypedDict, Unpack, get_args

import cvxpy as cp
import numpy as np
from numpy.typing import ArrayLike

from wdro_model.checks import choice, number
from wdro_model.display.bars import progress_bar
from wdro_model.problem import Problem
from wdro_model.sets import In
from wdro_model.solve.certify import STATIONARY, Solution
from wdro_model.solve.options import Options, check_time_limit
from wdro_model.solvers import FrankWolfe, LineSearch, Solver, State, Stop
from wdro_model.solvers.trace import Display, Record, Trace
from wdro_model.traffic.beckmann import beckmann, system_cost
from wdro_model.traffic.bushes import Bushes, PowerCosts
from wdro_model.traffic.flows import TrafficFlows
from wdro_model.traffic.flows.paths import PathFlows
from wdro_model.traffic.flows.traffic_flows import has_numba, refuse_without_numba
from wdro_model.traffic.network import Network, as_flow

Array = np.ndarray
DEFAULT_GAP = 1e-5
"""The relative gap that is certified by default."""
REACHED = "the relative gap is under the tolerance"
AssignmentMethod = Literal["auto", "bushes", "frank_wolfe"]


@dataclass(frozen=True)
class Tolerances:
    """Limits of runs on links and on bushes."""

    iterations: int = 10_000
    """The most Frank-Wolfe iterations, and the most sweeps over the bushes."""
    line_search: float = 0.1
    """The relative slope at which a line search on link flows ends; smaller numbers need more
    evaluations, and no fewer iterations."""
    rounding_gap: float = 1e-13
    """Relative gap below which rounding errors are to blame for what does not improve."""
    sweeps: int = 120
    last_sweeps: int = 8
    """Sweeps without a gap that is 10% smaller after which a run ends: before the gap is at the
    level of rounding errors, and from there on."""
    stricter: float = 0.7
    """The next gap to aim at, as a part of the last, if the oracle finds a gap above the tolerance
    where the bushes did not."""


TOLERANCES = Tolerances()


def biconjugate_solver(
    gap: float, iterations: int = TOLERANCES.iterations, stops: Any = ()
) -> FrankWolfe:
    """Frank-Wolfe over link flows with biconjugate directions; stops: callbacks that may end it."""
    return FrankWolfe(
        gap=gap,
        direction="biconjugate",
        step=LineSearch(TOLERANCES.line_search),
        max_iterations=iterations,
        callbacks=stops,
    )


class AssignmentOptions(TypedDict, total=False):
    """The display options of a run, and the seed of its first direction."""

    seed: int
    verbose: bool
    progress: bool


class FlowAndSolution(NamedTuple):
    """The parts that an assignment unpacks to."""

    flow: Array
    solution: Solution


class Assignment(FlowAndSolution):
    """A flow (A,) and the solution that tells how it was found.

    Examples
    --------
    >>> flow, solution = wdro.traffic.equilibrium(network, gap=1e-2)
    >>> flow.shape, solution.status
    ((76,), 'optimal')
    """

    bushes: Bushes | None = None
    """The flows by origin, if they were found on bushes: another run can start from them."""

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
class Purpose:
    """The objective of an assignment over link flows, the sum of the integrals of arc costs."""

    loss: Callable[..., Any]
    """The objective without fixed costs, as a CVXPY expression."""
    value: Callable[[Network, Array], float]
    """The objective at a flow."""
    factor: Callable[[Array], Any]
    """The weight of an arc's congestion in its cost, given the powers of the arcs."""
    of_value: bool
    """Is the gap a fraction of the objective, and not of <t, x>?"""

    def costs_at(self, network: Network, flow: Array) -> Array:
        """The costs t of the arcs at a flow: the gradient of the objective."""
        with np.errstate(over="ignore", invalid="ignore"):
            load = self.factor(network.power) * (flow / network.capacity) ** network.power
            return network.free_flow_time * (1.0 + network.b * load) + network.fixed_cost

    def power_costs(self, network: Network) -> PowerCosts:
        """The costs of the arcs as functions of their flows, for bushes."""
        weight = network.free_flow_time * network.b * self.factor(network.power)
        constant = network.free_flow_time + network.fixed_cost
        return PowerCosts.from_capacity(constant, network.capacity, weight, network.power)


SELFISH = Purpose(beckmann, Network.beckmann, lambda power: 1.0, of_value=False)
SOCIAL = Purpose(system_cost, Network.total_cost, lambda power: power + 1.0, of_value=True)


def equilibrium(
    network: Network,
    *,
    gap: float = DEFAULT_GAP,
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
        y all-or-nothing at t: the share of their time that travellers could save. The gap that the
        solution reports is relative to the objective, which is smaller than `<t, x>`.
    method
        "bushes" shifts trips between paths, origin by origin (algorithm B): gaps of 1e-10 and less
        in seconds; it needs Numba, `pip install 'wdro_model[fast]'`. "frank_wolfe" works on the
        flows of links, for gaps down to 1e-5 or 1e-6. "auto" takes bushes where Numba is installed.
    flows
        The `sets.TrafficFlows` of the network, to choose its backend or to build it only once. Its
        all-or-nothing flows certify the gap.
    solver
        A solver for "frank_wolfe" (biconjugate directions by default), with its own tolerance.
    start
        An earlier assignment on the same arcs, also for other demand or other times; or flows (A,).
        A run on bushes starts from the bushes of an assignment, or from the times of other flows.
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
    gap: float = DEFAULT_GAP,
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
        All else as in `equilibrium`.

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
    costs = purpose.power_costs(network)
    on_bushes = _chooses_bushes(method, costs, flows, solver)
    feasible = TrafficFlows(network) if flows is None else flows
    if not on_bushes:
        return _solve_on_links(purpose, network, gap, feasible, solver, start, time_limit, options)
    run = BushRun(purpose, network, Bushes(feasible.trips, costs), feasible.minimize, gap)
    return run.solve(start, checked, seconds, began)


def _chooses_bushes(method: str, costs: PowerCosts, flows: Any, solver: Any) -> bool:
    """Is the method "bushes"? Refuses it where it cannot be."""
    choice("method", method, get_args(AssignmentMethod))
    if solver is not None:
        if method == "bushes":
            raise ValueError(
                f"solver={solver!r} was given with method='bushes', which is its own solver; leave "
                "one of them out."
            )
        return False
    if method == "auto":
        return has_numba() and costs.are_nonnegative and isinstance(flows, TrafficFlows | None)
    if method == "bushes":
        refuse_without_numba("method 'bushes'", "method='frank_wolfe'")
        costs.refuse_negative()
    return method == "bushes"


def _start_flow(start: Start, network: Network) -> Array:
    """The link flows (A,) of a start."""
    flow: Any = start.flow if isinstance(start, FlowAndSolution) else start
    if isinstance(flow, Solution | Mapping):
        values = flow.decision if isinstance(flow, Solution) else flow
        if len(values) != 1:
            raise ValueError(
                f"start has values of {len(values)} variables, and not of the flows alone; give "
                "the flows (A,)."
            )
        (flow,) = values.values()
    try:
        flow = np.asarray(flow, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"start must be an earlier assignment, its solution, or flows (A,), got {start!r}."
        ) from error
    return as_flow(flow, network, one=True)


# ------------------------------------------------------------------ on links
def _solve_on_links(
    purpose: Purpose,
    network: Network,
    gap: float,
    feasible: Any,
    solver: Solver | str | None,
    start: Start | None,
    time_limit: float | None,
    options: AssignmentOptions,
) -> Assignment:
    """Frank-Wolfe with biconjugate directions, or another solver."""
    x = cp.Variable(feasible.dimension, name="flow")
    loss = purpose.loss(x, network.capacity, network.free_flow_time, network.b, network.power)
    problem = Problem(cp.Minimize(loss + network.fixed_cost @ x), [In(x, feasible)])
    given = None
    if start is not None:
        given = {x: _start_flow(start, network)}
        if isinstance(feasible, TrafficFlows) and feasible.is_unbalanced(given[x]):
            raise ValueError(
                f"start does not route the demand of {network!r}: what enters and leaves its nodes "
                "differs; give flows that do, or use method='bushes', which goes on from an "
                "assignment for other demand."
            )

    def has_reached_gap(state: State) -> bool:
        """(<t, x> - <t, y>) / <t, x> <= gap, where t is the gradient of Beckmann's objective."""
        return bool(state.gap <= gap * float(state.gradient @ state.x))

    stops = [] if purpose.of_value or solver is not None else [has_reached_gap]
    problem.solve(
        method="erm",
        solver=biconjugate_solver(gap, stops=stops) if solver is None else solver,
        time_limit=time_limit,
        start=given,
        **options,
    )
    solution = problem.solution
    assert solution is not None
    if stops and solution.stop == Stop.CALLBACK.value:
        status = cp.OPTIMAL if solution.convex else STATIONARY
        solution = replace(solution, status=status, stop=REACHED)
    return Assignment(np.array(x.value, dtype=np.float64), solution)


# ------------------------------------------------------------------ on bushes
class OutOfTime(Exception):
    """The time of the run is up."""


@dataclass(frozen=True)
class CertifiedFlow:
    """A flow x, its objective and its cost <t, x>, with a gap certified by an oracle.

    The gap is <t, x> - <t, y>, y all-or-nothing at t; 0 where rounding errors make it negative.
    """

    flow: Array
    value: float
    spent: float
    gap: float


class BushRun:
    """Sweeps over all bushes until the gap is reached, or a limit is (algorithm B).

    oracle: all-or-nothing flows for costs of the arcs, independent of the bushes.
    """

    def __init__(
        self,
        purpose: Purpose,
        network: Network,
        bushes: Bushes,
        oracle: Callable[[Array], Array],
        gap: float,
    ) -> None:
        self.purpose, self.network, self.bushes = purpose, network, bushes
        self.oracle, self.gap = oracle, gap
        self.trace, self.lower_bound, self.oracle_calls = Trace(), -np.inf, 0
        self._began = self._deadline = np.inf

    def solve(
        self, start: Start | None, options: Options, time_limit: float | None, began: float
    ) -> Assignment:
        """The equilibrium; began: the moment from which the time limit counts."""
        self._plant(start)
        self._began = began
        if time_limit is not None:
            # The oracle certifies the result, which takes about as long as the first trees.
            self._deadline = began + time_limit - min(self._seconds(), 0.5 * time_limit)
        certified, status, title = None, cp.USER_LIMIT, "equilibrium"
        show = options.progress and not options.verbose
        bar = progress_bar(title, None, unit="sweep", show=show, delay=3.0)
        with Display(options.verbose, False, None, title) as display:
            try:
                certified, status, stop = self._sweep(display, bar)
            except OutOfTime:
                stop = Stop.TIME.value
            except KeyboardInterrupt:
                stop = Stop.INTERRUPT.value
            finally:
                bar.close()
            certified = self._certify() if certified is None else certified
            if self._is_reached(certified):
                status = cp.OPTIMAL
            display.end(stop)
        solution = Solution(
            method="erm",
            status=status,
            value=certified.value,
            decision={cp.Variable(certified.flow.size, name="flow"): certified.flow},
            solver=f"bushes (algorithm B), relative gap {self.gap:g}",
            seconds=self._seconds(),
            stop=REACHED if status == cp.OPTIMAL else stop,
            convex=True,
            iterations=max(len(self.trace) - 1, 0),
            oracle_calls=self.oracle_calls,
            gap=certified.gap,
            lower_bound=max(self.lower_bound, certified.value - certified.gap),
            empirical_value=certified.value,
            trace=self.trace,
        )
        assignment = Assignment(certified.flow, solution)
        assignment.bushes = self.bushes
        return assignment

    def _plant(self, start: Start | None) -> None:
        """Load the first flows: those of an earlier run, or trees at the costs of a start."""
        bushes, network = self.bushes, self.network
        earlier = getattr(start, "bushes", None)
        if start is None:
            bushes.plant()
        elif earlier is None:
            bushes.plant(self.purpose.costs_at(network, _start_flow(start, network)))
        elif not bushes.trips.has_roads_of(earlier.trips):
            raise ValueError(
                f"start is an assignment on other arcs than those of {network!r}; give one on the "
                "same arcs, with the same nodes that may be passed, or leave start out."
            )
        else:
            bushes.adopt(earlier)

    def _allowed_gap(self, value: float, spent: float) -> float:
        """The gap to reach, as a part of what is spent."""
        return self.gap * abs(value) / spent if self.purpose.of_value and spent else self.gap

    def _is_reached(self, certified: CertifiedFlow) -> bool:
        spent = certified.spent
        return certified.gap <= self._allowed_gap(certified.value, spent) * spent

    def _certify(self) -> CertifiedFlow:
        """The present flows, with the gap that the oracle finds."""
        flow = self.bushes.link_flows
        costs = self.purpose.costs_at(self.network, flow)
        spent = float(costs @ flow)
        gap = spent - float(costs @ self.oracle(costs))
        self.oracle_calls += 1
        return CertifiedFlow(flow, self.purpose.value(self.network, flow), spent, max(gap, 0.0))

    def _sweep(self, display: Display, bar: Any) -> tuple[CertifiedFlow, str, str]:
        """Sweep until the run ends; returns the certified flow, the status and the reason."""
        aim, least_gap, unimproved = 1.0, np.inf, 0
        for iteration in range(TOLERANCES.iterations + 1):
            gap = self.bushes.improve(self._pause)
            spent, value = self.bushes.spent, self._value(iteration)
            self.lower_bound = max(self.lower_bound, value - gap * spent)
            record = Record(
                iteration, self._seconds(), value, gap * spent, np.nan, np.nan, iteration + 1
            )
            self.trace.records.append(record)
            display.show(record)
            bar.set_postfix_str(f"relative gap {gap:.1e}", refresh=False)
            bar.update(1)
            if gap <= aim * self._allowed_gap(value, spent):
                certified = self._certify()
                if self._is_reached(certified):
                    return certified, cp.OPTIMAL, REACHED
                aim *= TOLERANCES.stricter
            unimproved += 1
            if gap < 0.9 * least_gap:
                least_gap, unimproved = gap, 0
            is_rounding = least_gap < TOLERANCES.rounding_gap
            if unimproved >= (TOLERANCES.last_sweeps if is_rounding else TOLERANCES.sweeps):
                reason = "rounding errors leave no smaller gap"
                stop = reason if is_rounding else "the gap shrinks no further"
                return self._certify(), cp.OPTIMAL_INACCURATE, stop
            if iteration < TOLERANCES.iterations:
                self.bushes.balance(gap, self._pause)
        return self._certify(), cp.USER_LIMIT, Stop.ITERATIONS.value

    def _value(self, iteration: int) -> float:
        """The objective; refused where it or the costs are not finite."""
        flow = self.bushes.link_flows
        value = self.purpose.value(self.network, flow)
        if not (np.isfinite(value) and np.isfinite(self.bushes.spent)):
            costs = self.purpose.costs_at(self.network, flow)
            arc = int(np.argmax(~np.isfinite(costs * flow)))
            raise FloatingPointError(
                f"the objective is {value} at iteration {iteration}: arc {arc} with flow "
                f"{flow[arc]:.6g} costs {costs[arc]:g}; check its capacity and power."
            )
        return value

    def _seconds(self) -> float:
        return time.perf_counter() - self._began

    def _pause(self) -> None:
        """Raise OutOfTime if only the time for the oracle is left."""
        if time.perf_counter() >= self._deadline:
            raise OutOfTime


# ------------------------------------------------------------------ measures
def all_or_nothing(network: Network, times: ArrayLike, flows: Any = None) -> np.ndarray:
    """The flow (A,) of trips that all take a shortest path at fixed times (A,) >= 0.

    Parameters
    ----------
    flows
        The `sets.TrafficFlows` of the network, to choose its backend or to build it only once.

    Examples
    --------
    >>> flow = wdro.traffic.all_or_nothing(network, network.free_flow_time)
    >>> float(flow @ network.free_flow_time)                  # without congestion
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
    gap: float = DEFAULT_GAP,
    method: AssignmentMethod | str = "auto",
    flows: TrafficFlows | None = None,
    solver: Solver | str | None = None,
    time_limit: float | None = None,
    **options: Unpack[AssignmentOptions],
) -> float:
    """The total cost of the user equilibrium over the cost of the social optimum, >= 1.

    Parameters
    ----------
    **options
        The options of `equilibrium` and `social_optimum`.

    Examples
    --------
    >>> round(wdro.traffic.price_of_anarchy(network, gap=1e-3), 2)
    1.04
    """
    flows = TrafficFlows(network) if flows is None else flows
    selfish, best = (
        network.total_cost(
            _assign(purpose, network, gap, method, flows, solver, None, time_limit, options).flow
        )
        for purpose in (SELFISH, SOCIAL)
    )
    return selfish / best if best else 1.0
