"""The problem a user states: a loss, constraints and an ambiguity set."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.error import ParameterError

from wdro_model.errors import ConvexityWarning, unknown_name
from wdro_model.execution import run_conic, run_first_order
from wdro_model.explanation import explain
from wdro_model.feasible import Feasible, parameters_of
from wdro_model.loss import BatchedLoss, CallableLoss, analyse
from wdro_model.loss.flat import FlatLoss
from wdro_model.methods import Plan, Solver, plan
from wdro_model.model import Model
from wdro_model.options import Options
from wdro_model.sets import In
from wdro_model.smoothing import run_smoothed
from wdro_model.solution import STATIONARY, Solution
from wdro_model.solvers import Conic, FrankWolfe, MomentumFrankWolfe
from wdro_model.uncertainty.ambiguity import WassersteinBall
from wdro_model.uncertainty.joint import JointSamples
from wdro_model.uncertainty.lazy import scenario_batches
from wdro_model.uncertainty.parameter import UncertainParameter

BATCH_ENTRIES = 2**24


class Problem:
    """Minimise the worst-case expected loss over a Wasserstein ball around the data.

        min over x in X of  sup { E_Q f(x, xi) : W_c(Q, empirical distribution) <= radius }

    Parameters
    ----------
    objective : cp.Minimize or CallableLoss
        A scalar CVXPY expression in the decision variables and the uncertain parameters.
    constraints : list
        CVXPY constraints and memberships `In(x, set)`.
    ambiguity : WassersteinBall, optional
        How far the data may move, and at what cost. Without it the problem is ERM.
    assume_convex : bool
        Your word that the loss is convex in the decision, where CVXPY's rules cannot see it.
    """

    def __init__(
        self,
        objective: Any,
        constraints: Sequence[Any] | None = None,
        ambiguity: WassersteinBall | None = None,
        *,
        assume_convex: bool = False,
    ) -> None:
        self.objective = objective
        self.constraints = check_constraints(constraints)
        self.ambiguity = check_ambiguity(ambiguity)
        self.assume_convex = bool(assume_convex)
        self._loss = compiled_loss(objective)
        self._model = self._compile()
        self._warned = False
        self.value: float | None = None
        self.status: str | None = None
        self.solution: Solution | None = None
        self._refuse_empty_set()

    # -------------------------------------------------------------- solving
    def solve(
        self,
        method: str = "auto",
        *,
        solver: Solver | None = None,
        time_limit: float | None = None,
        **options: Any,
    ) -> float:
        """Solve, set the variables' values, and return the optimal value.

        Parameters
        ----------
        method : "auto", "erm", "exact" or "smoothed"
            "auto" is exact where a reformulation is known, smoothed otherwise.
        solver : FrankWolfe, MomentumFrankWolfe or Conic, optional
        time_limit : float, optional
            Seconds, for the Frank-Wolfe methods.
        epsilon, sigma : float, optional
            Smoothing temperature and standard deviation of the reference Gaussian.
        integration, dual : str, optional
            How the inner integral and the dual variable are computed.
        seed : int
            Random numbers depend on it alone; nothing global is touched.
        start : dict {variable: value} or Solution, optional
            Where a Frank-Wolfe method begins; a point of the feasible set.
        verbose, progress : bool
            Print a table; show a bar on a terminal.
        """
        checked = self._options(options)
        chosen = plan(
            self._current_model(), method, with_time_limit(check_solver(solver), time_limit)
        )
        if time_limit is not None and solver is None and not isinstance(chosen.solver, Conic):
            chosen = plan(self._model, method, with_time_limit(chosen.solver, time_limit))
        solution = execute(self._model, chosen, checked)
        for variable, value in solution.decision.items():
            variable.save_value(np.array(value))
        self.value, self.status, self.solution = solution.value, solution.status, solution
        self._warn_about_convexity(solution)
        return solution.value

    def explain(self, method: str = "auto", *, solver: Solver | None = None, **options: Any) -> str:
        """What would be solved, how, and why: loss, data, ball, feasible set, formula, solver."""
        checked = self._options(options)
        return explain(
            self._current_model(), plan(self._model, method, solver), checked, self.solution
        )

    # -------------------------------------------------------------- evaluating
    def losses(self, scenarios: Any = None) -> np.ndarray:
        """f(x.value, scenario) for each scenario: {parameter: array}, an array, or the samples."""
        x = self._decision()
        if self._model.joint is None:
            return self._model.loss.values(x, self._model.rows)
        if scenarios is None:
            batches = iter([self._model.rows])
        else:
            size = max(1, BATCH_ENTRIES // max(1, self._model.joint.dimension))
            batches = scenario_batches(self._model.joint, scenarios, size)
        return np.concatenate([self._model.loss.values(x, rows) for rows in batches])

    # -------------------------------------------------------------- reading
    def variables(self) -> list[cp.Variable]:
        """The decision variables, in the order of their appearance."""
        return list(self._model.feasible.layout.variables)

    def uncertain_parameters(self) -> list[UncertainParameter]:
        """The uncertain parameters of the loss."""
        return [] if self._model.joint is None else list(self._model.joint.parameters)

    @property
    def radius(self) -> float:
        """The transport budget of the ambiguity set, 0 without one."""
        return self._model.radius

    def with_radius(self, radius: float) -> Problem:
        """The same problem with another radius: variables, data and compiled parts are shared."""
        if self.ambiguity is None:
            raise ValueError("the problem has no ambiguity set; pass ambiguity= when it is built.")
        twin = copy.copy(self)
        twin.ambiguity = WassersteinBall(radius, self.ambiguity.cost)
        twin._model = replace(self._model, ambiguity=twin.ambiguity)
        twin.value = twin.status = twin.solution = None
        return twin

    def __repr__(self) -> str:
        return (
            f"Problem({len(self.variables())} variable(s), "
            f"{len(self.uncertain_parameters())} uncertain parameter(s), {self.ambiguity!r})"
        )

    # -------------------------------------------------------------- compiling
    def _compile(self) -> Model:
        loss, expression = self._loss, getattr(self._loss, "expression", None)
        uncertain = tuple(loss.parameters)
        refuse_uncertain_constraints(self.constraints)
        for parameter in uncertain:
            if parameter.samples is None:
                raise ValueError(
                    f"the uncertain parameter {parameter.name()!r} has no samples; declare it as "
                    f"UncertainParameter({parameter.shape}, samples=array of shape (N, ...))."
                )
        feasible = Feasible(self.constraints, all_variables(loss.variables, self.constraints))
        joint = JointSamples(uncertain) if uncertain else None
        ball = self.ambiguity
        return Model(
            expression=expression,
            loss=FlatLoss(loss, feasible.layout, joint),
            structure=None if expression is None else analyse(expression, uncertain),
            joint=joint,
            ambiguity=ball,
            cost=ball.cost.bind(joint) if ball is not None and joint is not None else None,
            feasible=feasible,
            assume_convex=self.assume_convex,
        )

    def _current_model(self) -> Model:
        """The model, after a look at the certain parameters."""
        expression = self._model.expression
        parameters = [] if expression is None else expression.parameters()
        for constraint in self._model.feasible.constraints:
            parameters = [*parameters, *parameters_of(constraint)]
        for parameter in parameters:
            if not isinstance(parameter, UncertainParameter) and parameter.value is None:
                raise ParameterError(
                    f"the parameter {parameter.name()!r} has no value; set its .value, or declare "
                    "it as an UncertainParameter with samples."
                )
        return self._model

    def _refuse_empty_set(self) -> None:
        """An empty feasible set is an error here rather than in the middle of a solve."""
        feasible = self._model.feasible
        certain = [p for c in feasible.constraints for p in parameters_of(c)]
        if not feasible.constraints or feasible.is_integer or any(p.value is None for p in certain):
            return
        feasible.oracle().check_nonempty()

    def _options(self, options: dict[str, Any]) -> Options:
        known = [field.name for field in fields(Options)]
        for name in options:
            if name not in known:
                raise TypeError(unknown_name("option", name, [*known, "solver", "time_limit"]))
        return Options(**options)

    def _decision(self) -> np.ndarray:
        layout = self._model.feasible.layout
        for variable in layout.variables:
            if variable.value is None:
                raise ValueError(
                    f"the variable {variable.name()!r} has no value yet; call solve() first, or "
                    "set its .value."
                )
        return layout.join({v: v.value for v in layout.variables})

    def _warn_about_convexity(self, solution: Solution) -> None:
        if solution.convex or self._warned:
            return
        self._warned = True
        warnings.warn(
            "the loss is not provably convex in the decision: the result is a stationary point "
            f"(status {STATIONARY!r}) and its gap bounds no distance to the optimum. If you know "
            "that it is convex, pass assume_convex=True to the problem.",
            ConvexityWarning,
            stacklevel=3,
        )


def execute(model: Model, chosen: Plan, options: Options) -> Solution:
    """Solve a model as planned."""
    if isinstance(chosen.solver, Conic):
        return run_conic(model, chosen, chosen.solver, options)
    if chosen.objective is None:
        return run_smoothed(model, chosen, chosen.solver, options)
    return run_first_order(model, chosen, chosen.solver, options)


# ------------------------------------------------------------------ validation
def compiled_loss(objective: Any) -> BatchedLoss | CallableLoss:
    """The loss of an objective, lowered to NumPy."""
    if isinstance(objective, CallableLoss):
        return objective
    if isinstance(objective, cp.Maximize):
        raise ValueError(
            "a wdro Problem minimises a loss; write cp.Minimize(-reward) instead of "
            "cp.Maximize(reward)."
        )
    if not isinstance(objective, cp.Minimize):
        raise ValueError(
            f"the objective must be cp.Minimize(loss) or a CallableLoss, got "
            f"{type(objective).__name__}; wrap the expression in cp.Minimize(...)."
        )
    return BatchedLoss(objective.expr)


def check_constraints(constraints: Sequence[Any] | None) -> list[Any]:
    """A list of CVXPY constraints and memberships."""
    if constraints is None:
        return []
    if isinstance(constraints, (In, cp.constraints.constraint.Constraint)):
        raise ValueError("constraints must be a list; write [constraint].")
    for constraint in constraints:
        known = (In, cp.constraints.constraint.Constraint, bool, np.bool_)
        if not isinstance(constraint, known):
            raise ValueError(
                f"a constraint must be a CVXPY constraint or In(x, set), got "
                f"{type(constraint).__name__}: {constraint!r}."
            )
    return list(constraints)


def check_ambiguity(ambiguity: Any) -> WassersteinBall | None:
    """None or a ball."""
    if ambiguity is None or isinstance(ambiguity, WassersteinBall):
        return ambiguity
    raise ValueError(
        f"ambiguity must be a WassersteinBall, got {ambiguity!r}; "
        "write ambiguity=WassersteinBall(radius=...)."
    )


def check_solver(solver: Any) -> Solver | None:
    """None or one of the library's solvers."""
    if solver is None or isinstance(solver, (Conic, FrankWolfe, MomentumFrankWolfe)):
        return solver
    if isinstance(solver, str) and solver in cp.installed_solvers():
        return Conic(solver)
    raise ValueError(
        f"solver must be FrankWolfe(...), MomentumFrankWolfe(...), Conic(...) or the name of a "
        f"CVXPY solver, got {solver!r}."
    )


def with_time_limit(solver: Solver | None, seconds: float | None) -> Solver | None:
    """A Frank-Wolfe solver with a time limit."""
    if seconds is None or solver is None or isinstance(solver, Conic):
        return solver
    return type(solver)(
        **{**{f.name: getattr(solver, f.name) for f in fields(solver)}, "time_limit": seconds}
    )


def refuse_uncertain_constraints(constraints: Sequence[Any]) -> None:
    """Uncertainty is allowed in the loss only."""
    for constraint in constraints:
        if isinstance(constraint, (In, bool, np.bool_)):
            continue
        for parameter in constraint.parameters():
            if isinstance(parameter, UncertainParameter):
                raise ValueError(
                    f"the uncertain parameter {parameter.name()!r} is in the constraint "
                    f"{constraint}; only the loss may be uncertain: move it there as a penalty."
                )


def all_variables(in_loss: Sequence[cp.Variable], constraints: Sequence[Any]) -> list[cp.Variable]:
    """The variables of the loss and of the constraints, each once."""
    found: dict[cp.Variable, None] = dict.fromkeys(in_loss)
    for constraint in constraints:
        if isinstance(constraint, In):
            found[constraint.variable] = None
        elif not isinstance(constraint, (bool, np.bool_)):
            found.update(dict.fromkeys(constraint.variables()))
    if not found:
        raise ValueError("the problem has no decision variable.")
    return list(found)


def solve_cvxpy_problem(
    problem: cp.Problem, ambiguity: WassersteinBall | None = None, **options: Any
) -> float:
    """`cp.Problem(...).solve(method="wdro", ambiguity=...)`."""
    method = options.pop("wdro_method", "auto")
    return Problem(problem.objective, problem.constraints, ambiguity).solve(method, **options)
