"""The problem a user states: a loss, constraints and an ambiguity set."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    Never,
    Protocol,
    SupportsFloat,
    Unpack,
    runtime_checkable,
)

import cvxpy as cp
import numpy as np
from cvxpy.lin_ops import lin_utils
from numpy.typing import ArrayLike

from wdro_model.display.tables import Facts, brief, counted, facts_html, facts_lines
from wdro_model.errors import ConvexityWarning, InfeasibleError
from wdro_model.model import Memory, Model, RobustModel, compiled
from wdro_model.model.compiled import refuse_empty_set, refuse_missing_values
from wdro_model.model.declared import (
    ReadOnly,
    check_ambiguity,
    check_assumption,
    check_constraints,
    compiled_loss,
    refuse_other_labels,
)
from wdro_model.model.feasible import assign, forget_multipliers, set_by_hand
from wdro_model.model.sharing import alone, locks_of, one_thread_at_a_time
from wdro_model.model.uncertain_constraints import (
    declared_constraint,
    has_measures,
    refuse_unpaired,
    uncertain_in,
)
from wdro_model.objectives.cvar_thresholds import risk_on
from wdro_model.sets.deadlines import deadline, seconds_left
from wdro_model.solve import STAGES, Options, Solution, plan
from wdro_model.solve.certify import STATIONARY
from wdro_model.solve.constraints import explain_infeasibility, written_row
from wdro_model.solve.explain import explain, model_rows
from wdro_model.solve.options import (
    DualName,
    IntegrationName,
    Method,
    SolveOptions,
    check_solver,
    check_time_limit,
    user_start,
    with_time_limit,
)
from wdro_model.solve.plan import refuse_undefined, refuse_wrong_loss
from wdro_model.solve.true_risk import known_robust_value
from wdro_model.solvers import Solver
from wdro_model.solvers.features import Feature, has_features
from wdro_model.uncertainty.ambiguity import WassersteinBall
from wdro_model.uncertainty.costs.norm_costs import cost_on
from wdro_model.uncertainty.joint import JointSamples, as_rows
from wdro_model.uncertainty.parameter import UncertainParameter

if TYPE_CHECKING:
    from wdro_model.evaluation.discrete import Rounded
    from wdro_model.evaluation.path import RadiusPath
    from wdro_model.evaluation.statistics import LossStatistics
    from wdro_model.evaluation.worst_case import WorstCase


@runtime_checkable
class HasMultiplier(Protocol):
    """A CVXPY constraint, which type checkers do not know."""

    dual_value: Any


MAX_OBJECTIVE_TEXT = 120
"""Characters of an objective that are shown."""


class Problem:
    """Minimise the worst-case expected loss over a Wasserstein ball around the data.

        min over x in X of  sup { E_Q f(x, xi) : W_c(Q, empirical distribution) <= radius }

    With `cp.Maximize` the least expected value over the ball is maximised, and `value`, `losses`
    and all other results are rewards: they have the sign of the objective as it was written.

    The parts of a problem are read-only; `with_radius` and `with_samples` give twins, which share
    the variables but have decisions of their own. `losses`, `evaluate`, `robust_value`,
    `worst_case` and `round` judge the decision of the problem they are called on: the one of its
    last solve or `round`, whichever problem was solved since. Before its first solve, and for
    variables whose value was set since by hand or by a CVXPY problem, it is `variable.value`.

    Parameters
    ----------
    objective : cp.Minimize, cp.Maximize or CallableLoss
        A scalar CVXPY expression in the decision variables and the uncertain parameters.
    constraints : list
        CVXPY constraints and memberships `In(x, set)`.
    ambiguity : WassersteinBall, optional
        How far the data may move, and at what cost. Without it the problem is ERM.
    assume_convex : bool
        Pass True if you know that the loss is convex in the decision and CVXPY cannot see it.

    Examples
    --------
    >>> import cvxpy as cp, numpy as np, wdro_model as wdro
    >>> data = np.array([[0.10, 0.02], [-0.04, 0.03], [0.12, 0.01]])       # 3 months, 2 assets
    >>> x = cp.Variable(2, nonneg=True)
    >>> returns = wdro.UncertainParameter(2, samples=data)
    >>> ball = wdro.WassersteinBall(radius=0.001)
    >>> problem = wdro.Problem(cp.Minimize(-returns @ x), [cp.sum(x) == 1], ambiguity=ball)
    >>> print(f"{problem.solve():.4f}", problem.status)
    -0.0284 optimal
    >>> print(x.value.round(2))
    [1. 0.]
    """

    objective: Any = ReadOnly("build a new Problem with the other objective")
    constraints: Any = ReadOnly("build a new Problem with the other constraints")
    """CVXPY constraints and memberships, a tuple."""
    ambiguity: Any = ReadOnly(
        "with_radius(radius) gives the problem with another radius, with_samples(data) that on "
        "other data, and another cost takes a new Problem"
    )
    assume_convex: Any = ReadOnly("build a new Problem with assume_convex=")

    def __init__(
        self,
        objective: Any,
        constraints: Sequence[Any] | None = None,
        ambiguity: WassersteinBall | None = None,
        *,
        assume_convex: bool = False,
    ) -> None:
        self._objective = objective
        self._constraints = tuple(check_constraints(constraints))
        self._assume_convex = check_assumption(assume_convex)
        self._ambiguity = check_ambiguity(ambiguity)
        self._locks = locks_of(objective, self._constraints)
        with alone(self._locks):
            self._model = declared_model(
                objective, self._constraints, self._ambiguity, self._assume_convex
            )
            refuse_empty_set(self._model)
        self._warned = False
        self._decided: Mapping[cp.Variable, np.ndarray] | None = None
        self.value: float | None = None
        self.status: str | None = None
        self.solution: Solution | None = None

    # -------------------------------------------------------------- solving
    def solve(
        self,
        method: Method = "auto",
        *,
        solver: Solver | str | None = None,
        time_limit: float | None = None,
        epsilon: float | None = None,
        sigma: ArrayLike | None = None,
        integration: IntegrationName | None = None,
        dual: DualName | None = None,
        seed: int = 0,
        start: Mapping[cp.Variable, Any] | Solution | None = None,
        relax: bool = False,
        verbose: bool = False,
        progress: bool = True,
        **unknown: Never,
    ) -> float:
        """Solve, set the variables' values, and return the optimal value.

        Parameters
        ----------
        method : "auto", "erm", "exact" or "smoothed"
            "auto" is exact where a reformulation is known, smoothed otherwise.
        solver : a solver of `wdro_model.solvers`, optional
            FrankWolfe, QuasiNewton, MomentumFrankWolfe, Aggregation, Conic, Simplicial or
            BranchAndBound; or the name of a conic solver, such as "CLARABEL".
        time_limit : float, optional
            Seconds for the whole call, after which the best decision so far, the start or some
            feasible decision comes back with the status "user_limit".
        epsilon, sigma : float, optional
            Smoothing temperature and standard deviation of the reference Gaussian.
        integration : str, optional
            How the inner integral is computed: "closed_form", "separable", "low_rank", "norms",
            "cells", "conditional", "tilted" or "gaussian"; by default the first that applies.
        dual : "exact" or "vertex", optional
            The dual variable is minimised at each decision, or follows the paper's steps.
        seed : int
            Seed of all random numbers; nothing global is touched.
        start : dict {variable: value} or Solution, optional
            A feasible decision at which a Frank-Wolfe method begins.
        relax : bool
            Minimise over the convex hull of the feasible points where variables are integer.
        verbose, progress : bool
            Print a table; show a bar once the solve has lasted a few seconds.

        Examples
        --------
        >>> import cvxpy as cp, wdro_model as wdro
        >>> order = cp.Variable(nonneg=True)
        >>> demand = wdro.UncertainParameter(samples=[70.0, 90.0, 140.0], nonneg=True)
        >>> loss = 1.0 * order - 3.0 * cp.minimum(order, demand)  # buy at 1, sell at 3
        >>> ball = wdro.WassersteinBall(5.0, wdro.costs.Norm())  # demand moves by 5
        >>> problem = wdro.Problem(cp.Minimize(loss), [order <= 200], ambiguity=ball)
        >>> for method in ("erm", "exact", "smoothed"):
        ...     value = problem.solve(method)
        ...     print(f"{method:<9} {value:.1f} {problem.status}")
        erm       -160.0 optimal
        exact     -145.0 optimal
        smoothed  -146.5 optimal
        >>> problem.solve(epsilom=0.1)
        Traceback (most recent call last):
            ...
        TypeError: unknown option 'epsilom'. Did you mean 'epsilon'? ...
        """
        if unknown:
            Options.from_keywords(unknown)
        checked = Options(epsilon, sigma, integration, dual, seed, start, relax, verbose, progress)
        with deadline(check_time_limit(time_limit)), alone(self._locks):
            return self._solve(method, solver, checked)

    def _solve(self, method: Method, solver: Solver | str | None, checked: Options) -> float:
        """Solve with arguments that were checked, in the time that is left."""
        model, method = self._model_of(method, checked)
        with model.feasible.layout.holding():  # a solve that fails leaves the variables alone
            model.remember("gradient of a callable loss", lambda: refuse_wrong_loss(model))
            if method != "erm":
                refuse_undefined(model)
            chosen = plan(model, method, check_solver(solver), checked.relax)
            run = with_time_limit(chosen.solver, seconds_left())
            chosen = replace(chosen, solver=run)
            self.value = self.status = self.solution = self._decided = None
            try:
                solution = STAGES[chosen.stage](model, chosen, run, checked)
            except InfeasibleError as error:
                if not model.feasible.uncertain:
                    raise error from None
                raise explain_infeasibility(model, error) from None
            smoothed = solution.method == "smoothed" and method == "auto" and solver is None
            # Smoothed solves are over the convex hull: with integers, "auto" rounds the decision.
            if smoothed and model.feasible.is_integer and not checked.relax:
                from wdro_model.evaluation.discrete import rounded_solution

                solution = rounded_solution(self, solution)[0]
            if method != "erm":
                refuse_undefined(model, solution.everything)
        solution = solution.turned() if model.maximise else solution
        assurance = None if self.ambiguity is None else self.ambiguity.assurance
        if isinstance(model, RobustModel) and assurance is not None:
            solution = replace(solution, assurance=assurance)
        if not has_features(chosen.solver, Feature.PROGRAMS):
            forget_multipliers(model.feasible.declared)
        self._decide(solution.everything)
        self.value, self.status, self.solution = solution.value, solution.status, solution
        self._warn_about_convexity(solution)
        return solution.value

    @one_thread_at_a_time
    def explain(
        self,
        method: Method = "auto",
        *,
        solver: Solver | str | None = None,
        **options: Unpack[SolveOptions],
    ) -> str:
        """A text on the problem that would be solved: loss, data, ball, formula, solver, and why.

        Examples
        --------
        >>> import cvxpy as cp, wdro_model as wdro
        >>> x = cp.Variable(2, nonneg=True, name="x")
        >>> price = wdro.UncertainParameter(2, "price", samples=[[1.0, 2.0], [2.0, 1.0]])
        >>> ball = wdro.WassersteinBall(0.1)
        >>> problem = wdro.Problem(cp.Minimize(price @ x), [cp.sum(x) == 1], ball)
        >>> print(problem.explain())
        decision     x (2); 2 numbers
        feasible     1 CVXPY constraint(s)
        data         price (2), support Everywhere()
                     N = 2 joint samples in dimension 2
        loss         convex in the decision, affine in the data (price)
        ball         W_c <= 0.1 with c(xi, zeta) = sum_i (xi_i - zeta_i)^2 ...
        method       exact
        minimises    mean f + sqrt(radius) * |B(x)| in the dual norm of the cost...
        solver       conic solver CLARABEL ...
        because      an exact counterpart is known
        ...
        """
        checked = Options.from_keywords(options)
        model, method = self._model_of(method, checked)
        chosen = plan(model, method, check_solver(solver), checked.relax)
        return explain(model, chosen, checked, self.solution)

    # -------------------------------------------------------------- evaluating
    @one_thread_at_a_time
    def losses(self, scenarios: Any = None, decision: Any = None) -> np.ndarray:
        """f(x, scenario) for each scenario: {parameter or name: array}, an array, or the samples.

        decision: {variable: value} or a solution, in place of this problem's own decision. With
        `cp.Maximize` these are the values of the objective, of which large ones are good. Risk
        measures are replaced by their argument: of cvar(loss) it is the loss.

        Examples
        --------
        >>> problem.losses(decision={x: [0.0, 1.0]})                     # on the samples
        array([2., 1.])
        >>> problem.losses([[4.0, 5.0]], decision={x: [0.5, 0.5]})       # elsewhere
        array([4.5])
        """
        from wdro_model.evaluation.statistics import outcome_of

        model = self._current_model()
        return outcome_of(model, self._decision(decision), scenarios).losses

    @one_thread_at_a_time
    def evaluate(self, scenarios: Any = None, decision: Any = None) -> LossStatistics:
        """Mean, spread and tail of the losses on scenarios, or on the samples; and the risk.

        decision: {variable: value} or a solution, in place of this problem's own decision. The risk
        is the objective with its risk measures on these scenarios, the mean where it has none.

        Examples
        --------
        >>> held_out = [[2.0, 3.0], [4.0, 3.0], [2.0, 2.0]]
        >>> statistics = problem.evaluate(held_out, decision={x: [0.5, 0.5]})
        >>> print(f"mean {statistics.mean:.3f}, worst {statistics.worst:.3f}")
        mean 2.667, worst 3.500
        """
        from wdro_model.evaluation.statistics import constraint_values, outcome_of

        model, x = self._current_model(), self._decision(decision)
        statistics = outcome_of(model, x, scenarios).statistics
        return replace(statistics, constraints=constraint_values(model, x, scenarios))

    @one_thread_at_a_time
    def robust_value(self, decision: Any = None) -> float | None:
        """The exact worst-case risk of this problem's decision, or of another {variable: value}.

        None where no exact formula is known for the loss, the cost and the support.

        Examples
        --------
        >>> print(f"{problem.robust_value({x: [0.5, 0.5]}):.4f}, {1.5 + np.sqrt(0.5):.4f}")
        2.2071, 2.2071
        """
        model = self._current_model()
        x = self._decision(decision)
        if model.radius == 0 or not isinstance(model, RobustModel):
            return model.sign * risk_on(model, x, model.rows, model.shares.probabilities)
        value = known_robust_value(model, x)
        return None if value is None else model.sign * value

    @one_thread_at_a_time
    def worst_case(
        self,
        method: Literal["exact", "smoothed"] | HasMultiplier | None = None,
        decision: Any = None,
    ) -> WorstCase:
        """The adversarial distribution at the decision: scenarios, weights, transport cost.

        For an uncertain constraint it is the distribution that comes closest to violating it. Its
        expected loss is then the left-hand side minus the right one, in the entry of a vector where
        that is largest.

        Parameters
        ----------
        method
            "exact" for the extremal distribution, where an exact formula is known, "smoothed"
            for draws of the smoothed problem's adversary after solve(method="smoothed"); by default
            the one of the last solve. Or a constraint.
        decision
            {variable: value} or a solution, instead of this problem's own; only for "exact".

        Examples
        --------
        >>> nearby = problem.with_radius(0.02)
        >>> round(nearby.solve(), 2)
        1.6
        >>> adversary = nearby.worst_case()
        >>> adversary.scenarios[price].round(2)              # every price 0.1 higher
        array([[1.1, 2.1],
               [2.1, 1.1]])
        >>> print(f"{adversary.transport_cost:.3f} of {nearby.radius}")
        0.020 of 0.02
        """
        from wdro_model.evaluation.worst_case import constraint_worst_case, find_worst_case

        model, x = self._current_model(), self._decision(decision)
        if isinstance(method, HasMultiplier):
            return constraint_worst_case(model, x, method)
        worst = find_worst_case(model, x, self._solution_at(x), method)
        return replace(worst, expected_loss=model.sign * worst.expected_loss)

    @one_thread_at_a_time
    def path(
        self,
        radii: Iterable[float],
        method: Method = "auto",
        *,
        test: Any = None,
        solver: Solver | str | None = None,
        time_limit: float | None = None,
        **options: Unpack[SolveOptions],
    ) -> RadiusPath:
        """The decisions for several radii, each solve starting from the decision before it.

        `test` adds the losses on held-out scenarios; other arguments are those of each solve, and
        so is `time_limit`. The path prints as a table; `path.plot()` shows how decision and value
        change.

        Examples
        --------
        >>> dearer = problem.with_samples([[1.0, 2.0], [1.2, 1.4]])
        >>> path = dearer.path([0.0, 1.0, 100.0])
        >>> for solution in path.solutions:
        ...     print(f"{solution.value:.2f}", solution.decision[x].round(2))
        1.10 [1. 0.]
        2.04 [0.73 0.27]
        8.46 [0.52 0.48]
        """
        from wdro_model.evaluation.path import radius_path

        arguments = {"solver": solver, "time_limit": time_limit, **options}
        return radius_path(self, radii, method, test, arguments)

    @one_thread_at_a_time
    def round(self) -> Rounded:
        """Replace a fractional decision by a discrete one next to it: a tree, a path, integers.

        Takes the discrete decision of least worst-case risk that is found (of least mean loss after
        ERM; by the smoothed objective where no exact formula is known) as this problem's decision,
        sets the variables to it and returns its value beside that of the fractional decision (with
        `cp.Maximize`, those of the loss, minus the objective). Where integer variables stand beside
        continuous ones, these are solved again with the integers fixed. `problem.solution` and
        `problem.value` keep those of the solve.

        Examples
        --------
        >>> tree = wdro.sets.SpanningTree(nx.complete_graph(4))
        >>> x = cp.Variable(tree.dimension)
        >>> cost = wdro.UncertainParameter(6, samples=[[1.0, 2, 2, 2, 2, 1], [1.0, 1, 3, 1, 3, 2]])
        >>> ball = wdro.WassersteinBall(4.0)
        >>> problem = wdro.Problem(cp.Minimize(cost @ x), [wdro.In(x, tree)], ball)
        >>> round(problem.solve(), 2)
        7.13
        >>> rounded = problem.round()
        >>> tree.selected(x.value)
        [(0, 1), (0, 2), (2, 3)]
        >>> print(f"{rounded.fractional_value:.3f} in the hull, {rounded.value:.3f} for one tree")
        7.131 in the hull, 7.464 for one tree
        """
        from wdro_model.evaluation.discrete import round_decision

        return round_decision(self)

    # -------------------------------------------------------------- reading
    def variables(self) -> list[cp.Variable]:
        """The decision variables, in the order of their appearance.

        Examples
        --------
        >>> problem.variables() == [x]
        True
        """
        return list(self._model.feasible.layout.user_variables)

    def uncertain_parameters(self) -> list[UncertainParameter]:
        """The uncertain parameters of the loss, then those of constraints.

        Examples
        --------
        >>> problem.uncertain_parameters() == [price]
        True
        """
        return list(self._model.parameters)

    @property
    def radius(self) -> float:
        """The transport budget of the ambiguity set, 0 without one."""
        shared = (c.rows[0].radius for c in self._model.feasible.uncertain if not c.has_own_ball)
        return max((self._model.radius, *shared))

    @one_thread_at_a_time
    def with_radius(self, radius: SupportsFloat) -> Problem:
        """The same problem with another radius: variables, data and compiled parts are shared.

        Examples
        --------
        >>> print(f"{problem.solve():.2f}, {problem.with_radius(0.02).solve():.2f}")
        2.21, 1.60
        >>> problem.radius
        1.0
        """
        if self.ambiguity is None:
            raise ValueError("the problem has no ambiguity set; pass ambiguity= when it is built.")
        ball = WassersteinBall(radius, self.ambiguity.cost)
        return self._twin(self._model.with_ball(ball), ball)

    @one_thread_at_a_time
    def with_samples(
        self, samples: Any = None, *, rows: Any = None, probabilities: Any = None
    ) -> Problem:
        """The same problem on other data: variables, sets and the compiled loss are shared.

        Settings that depend on the data, such as weights="standardize", follow the new samples. The
        parameters keep the samples that they were declared with.

        Parameters
        ----------
        samples
            `{parameter: (N, *shape)}`, or the bare array if there is one parameter; checked as
            when the parameters are declared. Names of parameters do for keys.
        rows
            Instead of samples, the rows of the problem's own to use: indices, in any order and also
            more than once, or booleans. They are copied only if the method has to see each row.
        probabilities
            The probabilities of these samples, (N,); alone, of the problem's own. By default new
            samples have equal ones, and rows of the problem's own keep theirs, rescaled.

        Examples
        --------
        >>> print(f"{problem.with_samples([[2.0, 2.0], [1.5, 3.0]]).solve():.2f}")
        2.72
        >>> print(f"{problem.with_samples(rows=[0]).solve():.2f}")       # without the second
        2.00
        """
        model = self._model
        if samples is None and rows is None and probabilities is not None:
            rows = slice(None)
        if (samples is None) == (rows is None):
            given = "neither" if samples is None else "both"
            raise ValueError(f"with_samples needs either samples or rows=, got {given}.")
        if not model.parameters:
            raise ValueError(
                "the loss has no uncertain parameter, there are no samples to exchange; declare "
                "one with UncertainParameter(..., samples=...)."
            )
        ball = None if self.ambiguity is None else self.ambiguity.unassured()
        if rows is not None:
            refuse_unpaired(model)

        def other(joint: JointSamples) -> JointSamples:
            if rows is None:
                return joint.replace(model.scenarios_of(joint, samples), probabilities)
            what = "rows of the samples with positive probabilities" if joint.left_out else "rows"
            some = joint.take(as_rows(rows, joint.size, what))
            return some if probabilities is None else some.reweighted(probabilities)

        return self._twin(model.with_samples(other), ball)

    def _facts(self) -> Facts:
        solution = self.solution
        if not isinstance(self.objective, cp.Minimize | cp.Maximize):
            text = str(self.objective.name)
        else:
            text = " ".join(str(self.objective.args[0]).split())
            if len(text) > MAX_OBJECTIVE_TEXT:
                text = text[: MAX_OBJECTIVE_TEXT - 3] + "..."
            text = f"{'maximise' if self._model.maximise else 'minimise'} {text}"
        rows = [("objective", text), *model_rows(self._model)]
        if solution is None:
            return [*rows, ("solution", "none yet: solve()")]
        value = f"{solution.value:.8g} by {solution.method}, {solution.status}"
        return [*rows, ("solution", f"{value}, in {solution.seconds:.3g} s")]

    _repr_html_ = facts_html
    __str__ = facts_lines

    def __repr__(self) -> str:
        variables = counted(len(self.variables()), "variable")
        data = counted(len(self.uncertain_parameters()), "uncertain parameter")
        solved = "" if self.value is None else f", {self.status}, value {self.value:.6g}"
        return brief(self, f"{variables}, {data}{solved}, {self.ambiguity!r}")

    # -------------------------------------------------------------- copying
    def _twin(self, model: Model, ball: WassersteinBall | None) -> Problem:
        """This problem with another model and ball, not solved yet."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._model, twin._ambiguity = model, ball
        twin.value = twin.status = twin.solution = twin._decided = None
        return twin

    def __getstate__(self) -> dict[str, Any]:
        """The state without results that can be computed again, with CVXPY's next id."""
        model = replace(self._model, memory=Memory())
        return self.__dict__ | {"_model": model, "_next_id": lin_utils.ID_COUNTER.count}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # CVXPY tells variables apart by an id, which it counts in each process: the auxiliary
        # variables of a later solve must not get the ids of variables that came from elsewhere.
        counter = lin_utils.ID_COUNTER
        wanted = state.pop("_next_id")
        if counter.count < wanted:  # no call in between, in which another thread might count on
            counter.count = wanted
        self.__dict__.update(state)

    # -------------------------------------------------------------- checking
    def _current_model(self) -> Model:
        """The model; an error where a certain parameter has no value."""
        refuse_missing_values(self._model)
        return self._model

    def _model_of(self, method: Method, checked: Options) -> tuple[Model, Method]:
        """The model that a method solves, and the method where it was left open."""
        model, method = self._current_model(), checked.method(method, self.radius)
        return (model.empirical() if method == "erm" else model), method

    def _decision(self, given: Any = None) -> np.ndarray:
        """The flat decision to be judged: the given one, else this problem's own."""
        layout = self._model.feasible.layout
        if given is not None:
            return user_start(self._model, given, "decision")
        own = self._decided or {}
        values = {
            v: own[v] if v in own and not set_by_hand(v) else v.value for v in layout.variables
        }
        for variable in layout.user_variables:
            if values[variable] is None:
                raise ValueError(
                    f"the variable {variable.name()!r} has no value yet; call solve() first, or "
                    "set its .value."
                )
        return layout.join({v: value for v, value in values.items() if value is not None})

    def _decide(self, decision: Mapping[cp.Variable, np.ndarray]) -> None:
        """Take a decision as this problem's own, and give it to the variables."""
        self._decided = dict(decision)
        assign(decision)

    def _solution_at(self, x: np.ndarray) -> Solution | None:
        """The last solution in terms of the loss, if x is its decision."""
        solution, layout = self.solution, self._model.feasible.layout
        if solution is None or not np.array_equal(x, layout.join(solution.everything)):
            return None
        return solution.as_loss()

    def _warn_about_convexity(self, solution: Solution) -> None:
        if solution.convex or self._warned:
            return
        self._warned = True
        warnings.warn(
            "the loss is not provably convex in the decision: the result is a stationary point "
            f"(status {STATIONARY!r}) and its gap bounds no distance to the optimum. If you know "
            "that it is convex, pass assume_convex=True to the problem.",
            ConvexityWarning,
            stacklevel=4,
        )


def declared_model(
    objective: Any, constraints: Sequence[Any], ball: WassersteinBall | None, assume_convex: bool
) -> Model:
    """Check the parts of a problem and compile its model, uncertain constraints by counterparts."""
    loss, tails = compiled_loss(objective)
    refuse_other_labels(objective, constraints)
    certain = [c for c in constraints if not has_measures(c)]
    others = [c for c in constraints if has_measures(c)]
    every = [*loss.parameters, *uncertain_in(others)]
    shared = ball
    if ball is not None and loss.parameters:
        shared = replace(ball, cost=cost_on(ball.cost, loss.parameters, every))
    in_constraints = [v for c in others for v in c.variables()]
    maximise = isinstance(objective, cp.Maximize)
    model = compiled(loss, certain, shared, assume_convex, maximise, tails, in_constraints)
    if not others:
        return model
    uncertain = [declared_constraint(c, ball, every, written_row) for c in others]
    model = model.with_uncertain(uncertain)
    model.feasible.check_intersections()
    for c, constraint in zip(others, uncertain):
        if all(
            p.value is not None for p in c.parameters() if not isinstance(p, UncertainParameter)
        ):
            constraint.written_rows()
    return model


def solve_cvxpy_problem(
    problem: cp.Problem,
    ambiguity: WassersteinBall | None = None,
    *,
    wdro_method: Method = "auto",
    solver: Solver | str | None = None,
    time_limit: float | None = None,
    **options: Unpack[SolveOptions],
) -> float:
    """`cp.Problem(...).solve(method="wdro", ambiguity=...)`."""
    Options.from_keywords(options, "ambiguity", "wdro_method")
    robust = Problem(problem.objective, problem.constraints, ambiguity)
    if ambiguity is None and wdro_method != "erm" and robust.uncertain_parameters():
        raise ValueError(
            'solve(method="wdro") has no ambiguity set, so that nothing is robust; pass '
            'ambiguity=wdro_model.WassersteinBall(radius), or wdro_method="erm" for the mean loss '
            "over the samples."
        )
    value = robust.solve(wdro_method, solver=solver, time_limit=time_limit, **options)
    # CVXPY would evaluate the objective at parameters that have no value.
    problem._value, problem._status = value, robust.status
    return value
