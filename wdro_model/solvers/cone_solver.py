"""Conic and quadratic programs, handed to a solver through CVXPY."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import cvxpy as cp
import numpy as np
from cvxpy import settings
from cvxpy.error import SolverError

from wdro_model.checks import whole_number
from wdro_model.errors import InaccurateError, InfeasibleError, UnboundedError, did_you_mean
from wdro_model.sets.deadlines import OutOfTime, seconds_left
from wdro_model.sets.feasible_set import FeasibleSet
from wdro_model.solvers.features import Feature, check_settings
from wdro_model.solvers.patience import Watch, patient, run_interruptible
from wdro_model.solvers.warm_highs import WarmHighs

MIXED_INTEGER = ("HIGHS", "SCIP", "GUROBI", "MOSEK", "COPT", "XPRESS", "CPLEX")
"""Solvers for integer variables: the one for linear programs first, those for cones after it."""

COMPILING = ("gp", "enforce_dpp", "ignore_dpp", "canon_backend")
"""Options of `cvxpy.Problem.solve` that are not the solver's."""
EMPTY_SET = (
    "the feasible set is empty: no point meets all the constraints; relax or remove one of them."
)
UNBOUNDED_OBJECTIVE = (
    "the objective is unbounded below over the feasible set; bound the variables, for example by "
    "x <= 10, or check the sign of the loss."
)
DECIDED = (settings.OPTIMAL, settings.INFEASIBLE, settings.UNBOUNDED)
UNDECIDED = {
    settings.INFEASIBLE_INACCURATE: "any point meets all the constraints",
    settings.UNBOUNDED_INACCURATE: "the objective is bounded",
    settings.INFEASIBLE_OR_UNBOUNDED: "the feasible set is empty or the objective unbounded",
}
"""Statuses of a solver that could not decide, with the open question."""
BROKEN_CONSTRAINT = 1e-3
"""How far a constraint may be from holding, relative to its terms or to one."""
ACCURATE = 1e-5
"""Answers that break a constraint by more than this share of its data are called inaccurate."""
PROBE_CHANGE = 1e-3
"""The relative change of the variables that shows how large the terms of a constraint are."""


@dataclass(frozen=True)
class ConicAnswer:
    """The answer of a conic solver: value, CVXPY's status, the solver's name, iterations."""

    value: float
    status: str
    solver: str
    iterations: int | None

    @classmethod
    def read(cls, problem: cp.Problem, unit: float = 1.0) -> ConicAnswer:
        """Read the answer of a problem that was solved; unit: of its objective."""
        stats = problem.solver_stats
        name = stats.solver_name.upper()  # lower case in the solvers of `patient`
        return cls(unit * float(problem.value), problem.status, name, stats.num_iters)


@dataclass(frozen=True)
class Conic:
    """A solver behind CVXPY: `Conic("SCS", {...})` names one.

    `Conic()` is Clarabel for continuous programs; with integer variables HiGHS, or the first
    installed solver that takes cones as well.

    Examples
    --------
    >>> import cvxpy as cp, wdro_model as wdro
    >>> x = cp.Variable(2, nonneg=True)
    >>> price = wdro.UncertainParameter(2, samples=[[1.0, 2.0], [2.0, 1.0]])
    >>> problem = wdro.Problem(cp.Minimize(price @ x), [cp.sum(x) == 1], wdro.WassersteinBall(0.5))
    >>> conic = wdro.solvers.Conic("CLARABEL", {"tol_gap_rel": 1e-9})
    >>> round(problem.solve(solver=conic), 4)
    2.0
    """

    solver: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Passed to `cvxpy.Problem.solve`."""

    features: ClassVar[frozenset[Feature]] = frozenset({Feature.PROGRAMS})
    stage: ClassVar[str | None] = "conic"

    def __post_init__(self) -> None:
        if not isinstance(self.options, Mapping):
            raise ValueError(
                f"options of Conic must be a dict, got {self.options!r}; write Conic('SCS', "
                "{'eps': 1e-6})."
            )
        if self.solver is None:
            return
        if not isinstance(self.solver, str):
            raise ValueError(
                f"Conic takes the name of a solver, got {self.solver!r}; installed: "
                f"{', '.join(cp.installed_solvers())}."
            )
        if self.solver.upper() in cp.installed_solvers():
            object.__setattr__(self, "solver", self.solver.upper())
        elif self.solver not in cp.installed_solvers():
            raise ValueError(
                f"the solver {self.solver!r} is not installed; installed: "
                f"{', '.join(cp.installed_solvers())}."
                f"{did_you_mean(self.solver.upper(), cp.installed_solvers())}"
            )

    def run(
        self,
        problem: cp.Problem,
        *,
        verbose: bool = False,
        progress: bool = False,
        title: str = "conic solver",
    ) -> None:
        """Solve in place; an infeasible or unbounded program is an error that says so.

        At Ctrl-C a KeyboardInterrupt, at the end of the time an OutOfTime; the variables are then
        where the solver ended, if it has a point.
        progress, title: of the bar for a long run.
        """
        watch = Watch(title, progress and not verbose)
        self._solve(problem, verbose, watch)
        left = seconds_left()
        if problem.status not in DECIDED and watch.interrupted:
            raise KeyboardInterrupt
        if problem.status not in DECIDED and left is not None and left <= 0:
            raise OutOfTime
        if problem.status == settings.INFEASIBLE:
            raise InfeasibleError(EMPTY_SET)
        if problem.status == settings.UNBOUNDED:
            raise UnboundedError(UNBOUNDED_OBJECTIVE)
        if problem.status in UNDECIDED:
            raise SolverError(
                f"the solver could not tell whether {UNDECIDED[problem.status]}; rescale the data, "
                "so that losses and radius are of order 1, or use another solver."
            )

    def warm(self, problem: cp.Problem, variables: Sequence[cp.Variable]) -> WarmHighs | None:
        """A HiGHS object that keeps a solved linear program for later solves; None for others.

        variables: those whose values will be read.
        """
        if self.solver != cp.HIGHS and (self.solver is not None or self.options):
            return None  # another solver was asked for, or is meant by the options
        if is_large(problem):
            return None  # under a time limit it is compiled in a forked process
        solver = patient(problem, self._name(problem))
        try:
            return WarmHighs.compile(problem, variables, solver, self.options)
        except SolverError:  # an option of CVXPY's interface that HiGHS itself does not know
            return None

    def run_again(self, problem: cp.Problem, unit: float = 1.0) -> ConicAnswer | None:
        """Solve a compiled program in place with other parameters; None unless it is optimal.

        No warm start: an interior point method gains nothing from the last answer, and answers
        should not depend on earlier solves.
        unit: the unit of the problem's objective.
        """
        solver = patient(problem, self._name(problem))
        watch = Watch()
        options = {**self.options, "warm_start": False}
        work = partial(_compile_and_solve, problem, solver, False, options)
        answered = run_interruptible(work, watch, is_large=is_large(problem))
        if watch.interrupted:
            raise KeyboardInterrupt
        solution = answered.solution
        if solution.status != settings.OPTIMAL:
            return None
        for variable in problem.variables():
            variable.save_value(solution.primal_vars[variable.id])
        for constraint in problem.constraints:
            if constraint.id in solution.dual_vars:
                constraint.save_dual_value(solution.dual_vars[constraint.id])
        name = answered.solver.name().upper()
        check_constraints(problem, name)
        iterations = solution.attr.get(settings.NUM_ITERS)
        value = unit * float(problem.objective.value)  # at the decision, as CVXPY has it
        return ConicAnswer(value, solution.status, name, iterations)

    def _name(self, problem: cp.Problem) -> str:
        """The solver that was named, or the preferred one."""
        return self.solver if self.solver is not None else preferred(problem)[0]

    def _solve(self, problem: cp.Problem, verbose: bool, watch: Watch) -> None:
        """Solve by the named solver, or by the first preferred one that can."""
        names = [self.solver] if self.solver is not None else preferred(problem)
        failure = SolverError("no installed solver takes a mixed-integer program with cones.")
        for name in names:
            try:
                solver = patient(problem, name)
                work = partial(_compile_and_solve, problem, solver, verbose, dict(self.options))
                answer = run_interruptible(work, watch, is_large=is_large(problem))
                problem.unpack_results(answer.solution, answer, None)
                if problem.status == settings.OPTIMAL:
                    check_constraints(problem, name)
                return
            except SolverError as error:
                failure = error
            except ImportError as error:
                failure = SolverError(
                    f"the solver {name} is installed but cannot be loaded ({error}); use another "
                    f"one: {', '.join(n for n in cp.installed_solvers() if n != name)}."
                )
        raise failure

    def describe(self) -> str:
        return f"conic solver {self.solver or 'CLARABEL (mixed-integer: HIGHS, or one for cones)'}"


OTHER_SOLVERS = (Conic(cp.HIGHS), Conic(cp.SCS, {"eps_abs": 1e-8, "eps_rel": 1e-8}))
"""Solvers for programs that Clarabel cannot solve: HiGHS for linear ones, a first-order method."""

LARGE = 50_000
"""Numbers of a program from which its compilation or an iteration may take seconds. A larger bound
leaves programs in this process that cannot be stopped; a fork costs hundredths of a second."""


def is_large(problem: cp.Problem) -> bool:
    """Has the program so many rows, constants and variables that it may take seconds?"""
    if seconds_left() is None:
        return False
    leaves = (*problem.constants(), *problem.variables(), *problem.parameters())
    return sum(part.size for part in (*leaves, *problem.constraints)) > LARGE


@dataclass(frozen=True)
class InvertedAnswer:
    """A solver's answer, in the form in which CVXPY asks a chain of reductions for it."""

    solution: Any
    solver_name: str

    @property
    def solver(self) -> InvertedAnswer:
        return self

    def name(self) -> str:
        """The name of the solver."""
        return self.solver_name

    def invert(self, solution: Any, inverse: Any) -> Any:
        """The solution in the user's variables, which it is already."""
        return solution


def _compile_and_solve(
    problem: cp.Problem, solver: Any, verbose: bool, options: dict[str, Any]
) -> InvertedAnswer:
    """Do the work of `problem.solve`; the answer is not yet given to the variables."""
    warm = options.pop("warm_start", True)
    compiling = {name: options.pop(name) for name in COMPILING if name in options}
    data, chain, inverse = problem.get_problem_data(
        solver, verbose=verbose, solver_opts=options, **compiling
    )
    raw = chain.solve_via_data(problem, data, warm, verbose, options)
    return InvertedAnswer(chain.invert(raw, inverse), str(chain.solver.name()))


def preferred(problem: cp.Problem) -> list[str]:
    """Solvers to try: an accurate interior point method, or the mixed-integer ones in order."""
    if not problem.is_mixed_integer():
        return [cp.CLARABEL]
    return [name for name in MIXED_INTEGER if name in cp.installed_solvers()]


def takes_integer_cones() -> bool:
    """Is a solver for mixed-integer programs with cones installed?"""
    return any(name in cp.installed_solvers() for name in MIXED_INTEGER[1:])


# ------------------------------------------------------------------ are the constraints met?
def check_constraints(problem: cp.Problem, solver: str) -> None:
    """Raise InaccurateError if the values of the variables break a constraint or an attribute.

    Solvers have tolerances between 1e-4 and 1e-9, each in units of its own. A point that violates a
    constraint by more than all of them, relative to the constraint's terms, is no solution.
    """
    for constraint in problem.constraints:
        violation = _violation(constraint)
        if violation > BROKEN_CONSTRAINT and violation > BROKEN_CONSTRAINT * _size_of_terms(
            constraint
        ):
            raise InaccurateError(
                _message(solver, f"the constraint {_short(constraint)}", violation)
            )
    for variable, violation in _attribute_violations(problem.variables()):
        if violation > BROKEN_CONSTRAINT * max(
            1.0, float(np.abs(_dense(variable.value)).max(initial=0.0))
        ):
            what = f"an attribute of the variable {variable.name()!r}"
            raise InaccurateError(_message(solver, what, violation))


def relative_violation(constraints: Sequence[Any], size_of_data: Callable[[], float]) -> float:
    """The largest violation of constraints, over that of their data or over one.

    size_of_data: what the data suggests that variables are at most. Terms of a row count as they
    are with such variables: an answer that runs off to 1e200 breaks its rows however large these
    are. It is asked for only where some violation is not small by itself.
    """
    worst = 0.0
    for constraint in constraints:
        violation = 0.0 if isinstance(constraint, bool | np.bool_) else _violation(constraint)
        if violation > ACCURATE:
            violation /= max(1.0, _size_of_data(constraint, size_of_data()))
        worst = max(worst, violation)
    return worst


def largest_constant(constraints: Sequence[Any]) -> float:
    """The largest number in some constraints."""
    written = [c for c in constraints if not isinstance(c, bool | np.bool_)]
    values = [leaf.value for c in written for leaf in (*c.constants(), *c.parameters())]
    return max((float(abs(v).max()) for v in values if np.size(v) and v is not None), default=0.0)


def _size_of_data(constraint: Any, size: float) -> float:
    """The size of a constraint's terms with variables that are at most so large."""
    variables = constraint.variables()
    values = [variable.value for variable in variables]
    try:
        for variable, value in zip(variables, values):
            variable.save_value(np.clip(value, -size, size))
        return _size_of_terms(constraint)
    finally:
        for variable, value in zip(variables, values):
            variable.save_value(value)


def _violation(constraint: Any) -> float:
    """The largest violation; 0 where it cannot be computed."""
    with np.errstate(all="ignore"):
        violation = np.asarray(constraint.violation(), dtype=float)
    worst = float(np.abs(violation).max(initial=0.0))
    return worst if np.isfinite(worst) else 0.0


def _size_of_terms(constraint: Any) -> float:
    """The size of the terms of a constraint: changes of its sum over changes of the variables."""
    variables, rng = constraint.variables(), np.random.default_rng(0)
    kept = [variable.value for variable in variables]
    here = [_dense(part.value) for part in constraint.args]
    size = max((float(np.abs(part).max(initial=0.0)) for part in here), default=0.0)
    try:
        for variable, value in zip(variables, kept):
            shape = variable.shape
            move = rng.uniform(0.5, 1.0, shape) * rng.choice([-1.0, 1.0], shape)
            variable.save_value(_dense(value) * (1.0 + PROBE_CHANGE * move))
        with np.errstate(all="ignore"):
            there = [_dense(part.value) for part in constraint.args]
    finally:
        for variable, value in zip(variables, kept):
            variable.save_value(value)
    changes = [float(np.abs(b - a).max(initial=0.0)) / PROBE_CHANGE for a, b in zip(here, there)]
    return max([size, *(change for change in changes if np.isfinite(change))])


def _attribute_violations(variables: list[cp.Variable]) -> Iterator[tuple[cp.Variable, float]]:
    """The variables with attributes, and how far their values are from them."""
    for variable in variables:
        if any(value is not None and value is not False for value in variable.attributes.values()):
            distance = _dense(variable.value) - _dense(variable.project(variable.value))
            yield variable, float(np.abs(distance).max(initial=0.0))


def _dense(value: Any) -> np.ndarray:
    """The entries of a value that CVXPY may hold as a sparse matrix."""
    return np.asarray(value.toarray() if hasattr(value, "toarray") else value)


def _message(solver: str, what: str, violation: float) -> str:
    return (
        f"{solver} called a point optimal that violates {what} by {violation:.1e}; measure the "
        "data in units in which losses, decisions and radius are of order 1, or use another solver."
    )


def _short(constraint: Any) -> str:
    text = str(constraint)
    return text if len(text) <= 80 else text[:77] + "..."


# ------------------------------
# Aggregation: samples with the same largest piece are merged into their mean


@dataclass(frozen=True)
class Aggregation:
    """Many samples and a loss of few affine pieces: most samples are far from a change of piece.

    Newton steps on a smoothed maximum, ever less smooth, lead near the optimum. There a conic
    program holds the samples next to a change of piece, and the mean of all that agree on theirs:
    a lower bound, and the optimum itself as soon as its decision changes the piece of no other.
    Those that it does change stand alone from then on. Absolute and quantile regression, support
    vector machines, CVaR, newsvendors; at thousands of samples it is chosen by itself.

    Examples
    --------
    >>> import cvxpy as cp, numpy as np, wdro_model as wdro
    >>> rng = np.random.default_rng(0)
    >>> features, x = rng.normal(size=(500, 3)), cp.Variable(3)
    >>> xi = wdro.UncertainParameter(3, samples=features)
    >>> y = wdro.UncertainParameter(samples=features.sum(axis=1) + rng.normal(size=500))
    >>> ball = wdro.WassersteinBall(0.01, wdro.costs.Norm(2))
    >>> problem = wdro.Problem(cp.Minimize(cp.abs(y - xi @ x)), [], ambiguity=ball)
    >>> value = problem.solve(solver=wdro.solvers.Aggregation())
    >>> bool(np.isclose(value, problem.solve(solver="CLARABEL"), rtol=1e-6))
    True
    """

    gap: float = 1e-6
    """Stop when value - lower bound is at most this fraction of |value|."""
    max_iterations: int = 50
    """Conic programs that are solved, at most."""
    time_limit: float | None = None
    """Seconds."""

    features: ClassVar[frozenset[Feature]] = frozenset({Feature.PROGRAMS, Feature.SAMPLE_GROUPS})
    stage: ClassVar[str | None] = "aggregation"

    def __post_init__(self) -> None:
        check_settings(self)
        whole_number("max_iterations", self.max_iterations, low=1)

    def describe(self, feasible: FeasibleSet | None = None) -> str:
        return f"aggregation of samples that agree on their piece, relative gap {self.gap:g}"
