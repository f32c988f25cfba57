"""Exact counterparts: what each offers and asks, their register, and the choice among them.

A new one is a class with a formula, `refusal` and `program`; everything else has a default, slower
or less than what the built-in ones offer. `@register_counterpart("name")` adds it in front of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from wdro_model.errors import NoReformulationError
from wdro_model.model import RobustModel
from wdro_model.objectives.empirical import Program
from wdro_model.registry import Register, refuse_signature
from wdro_model.solvers.cone_solver import Conic
from wdro_model.solvers.objective import Array, Objective
from wdro_model.uncertainty.costs import BoundCost
from wdro_model.uncertainty.parameter import UncertainParameter
from wdro_model.uncertainty.supports import Everywhere, Polyhedron

Inequalities = tuple[Any, Array]
"""C (m, d) sparse and h (m,), for {C xi <= h}."""
Condition = Callable[[RobustModel], str | None]
"""The reason why a counterpart does not apply to a model, in words; None if it does."""


@dataclass(frozen=True)
class Extremal:
    """A distribution of the ball that attains the worst-case risk of a decision.

    Examples
    --------
    >>> from wdro_model.counterparts import Extremal
    >>> moved = Extremal(                                # both samples, each moved by (0.1, 0.1)
    ...     rows=np.array([[1.1, 2.1], [2.1, 1.1]]), weights=np.array([0.5, 0.5]),
    ...     source=np.array([0, 1]), dual=3.5,
    ... )
    >>> moved.weights @ moved.rows
    array([1.6, 1.6])
    """

    rows: Array
    """Atoms, (K, d)."""
    weights: Array
    """Their probabilities, (K,)."""
    source: Array
    """The sample that each atom was moved from, (K,)."""
    dual: float
    """The multiplier of the transport budget; 0 where the radius does not bind."""


def unmoved(model: RobustModel) -> Extremal:
    """The empirical distribution itself."""
    return Extremal(model.rows, model.shares.array, np.arange(model.size), 0.0)


class Counterpart(ABC):
    """The worst-case risk over the ball by a formula, for the models that it applies to.

    Examples
    --------
    >>> from wdro_model.counterparts import Counterpart
    >>> class Shy(Counterpart):                             # it applies to nothing
    ...     formula = "none"
    ...     def refusal(self, model):
    ...         return "it would rather not"
    ...     def program(self, model):
    ...         return None
    >>> wdro.register_counterpart("shy", Shy) is Shy
    True
    >>> loss = cp.Minimize(cp.exp(-price @ x))
    >>> try:
    ...     wdro.Problem(loss, [cp.sum(x) == 1], ball).solve(method="exact")
    ... except wdro.NoReformulationError as error:
    ...     print("it would rather not" in error.reason)
    True
    """

    formula: ClassVar[str]
    """The worst-case risk, for people."""
    is_proven: ClassVar[bool] = False
    """Is it tested against brute force? Programs of other counterparts are checked."""

    @abstractmethod
    def refusal(self, model: RobustModel) -> str | None:
        """The reason why the counterpart does not apply, in words; None if it does."""

    @abstractmethod
    def program(self, model: RobustModel) -> Program | None:
        """The worst-case risk as a convex CVXPY program; None where CVXPY sees no convexity."""

    def remainder(self, model: RobustModel) -> Program | None:
        """The ball's addition to the mean loss, where that is a program without samples."""
        return None

    def maxima(self, model: RobustModel) -> Any | None:
        """The risk as `SampleMaxima`, if it sees samples through maxima only."""
        return None

    def writes_samples(self, model: RobustModel) -> bool:
        """Is every sample written into the program, rather than their mean?"""
        return True

    def has_objective(self, model: RobustModel) -> bool:
        """Is the worst-case risk a smooth function of the decision?"""
        return False

    def objective(self, model: RobustModel) -> Objective:
        """The worst-case risk as a smooth function of the flat decision, where it is one."""
        raise NotImplementedError(f"{type(self).__name__} is not smooth in the decision.")

    def value(self, model: RobustModel, x: Array) -> float:
        """The worst-case risk of one decision: its program with the decision held fixed.

        Without a program, the objective.
        """
        program = program_by(self, model)
        if program is None and self.has_objective(model):
            return float(objective_by(self, model).evaluate(x).value)
        if program is None:
            raise NotImplementedError(
                f"{type(self).__name__} has no convex program here, and defines no value(model, x)."
            )
        return value_at(program, model, x)

    def extremal(self, model: RobustModel, x: Array) -> Extremal:
        """A worst-case distribution of one decision."""
        raise NoReformulationError(
            f"the counterpart {type(self).__name__} gives the worst-case risk, not the "
            "distribution that attains it",
            "method='smoothed' and then worst_case()",
        )


def value_at(program: Program, model: RobustModel, x: Array) -> float:
    """The value of a program with the decision held fixed."""
    fixed = [v == part for v, part in model.feasible.layout.split(x).items()]
    with model.feasible.layout.holding():
        problem = cp.Problem(cp.Minimize(program.expression), [*program.constraints, *fixed])
        Conic().run(problem)
    return float(problem.value)


def counterpart_instance(name: str, given: Any) -> Counterpart:
    """The counterpart that a user registers, as an instance or a class; checked."""
    unwritten, required = (
        getattr(given, "__abstractmethods__", ()),
        ("formula", "refusal", "program"),
    )
    missing = [part for part in required if not hasattr(given, part) or part in unwritten]
    if missing:
        raise ValueError(
            f"the counterpart {name!r} lacks {', '.join(missing)}; it needs formula (a string), "
            "refusal(model) -> reason or None, and program(model) -> Program or None."
        )
    if not issubclass(given if isinstance(given, type) else type(given), Counterpart):
        raise ValueError(
            f"the counterpart {name!r} must be a subclass of wdro_model.counterparts.Counterpart, "
            "which has defaults for all that it does not define."
        )
    if not isinstance(given.formula, str):
        raise ValueError(
            f"the formula of the counterpart {name!r} must be a string, got {given.formula!r}."
        )
    try:
        entry = given() if isinstance(given, type) else given
    except TypeError as error:
        raise ValueError(
            f"the counterpart {name!r} needs a constructor without arguments: {error}; or register "
            "an instance."
        ) from error
    for part in ("refusal", "program"):
        refuse_signature(f"{part} of the counterpart {name!r}", getattr(entry, part), "model")
    return entry


COUNTERPARTS: Register[Counterpart] = Register(
    "counterpart", "wdro_model.counterparts", counterpart_instance
)
BUILT_IN: list[str] = []
"""Names of the counterparts of the library, the cheapest first."""


def register_counterpart(name: str, given: Any = None, *, replace: bool = False) -> Any:
    """Offer an exact counterpart: it is asked before those that are built in.

    As a decorator, `@register_counterpart("name")` above a subclass of `Counterpart`. An entry
    point in the group `wdro_model.counterparts` does the same from another package.

    Examples
    --------
    >>> from wdro_model.counterparts import Counterpart, Program, affine_parts, substitute
    >>> @wdro.register_counterpart("affine_on_norms")
    ... class AffineOnNorms(Counterpart):
    ...     formula = "mean f + radius |B(x)|, the dual norm of its slope in the data"
    ...     def refusal(self, model):
    ...         if model.expression is None or not model.affine_in_data:
    ...             return "the loss is not affine in the data"
    ...         if not model.cost.is_norm:
    ...             return "the cost is not a norm"
    ...         return None if model.joint.everywhere else "the support is not R^d"
    ...     def program(self, model):
    ...         slopes = affine_parts(model.expression, model.joint.parameters).slopes
    ...         slope = cp.hstack([cp.vec(slopes[p], order="C") for p in model.joint.parameters])
    ...         mean = substitute(model.expression, model.mean_values())
    ...         return Program.if_convex(mean + model.radius * model.cost.dual_norm(slope))
    >>> ball = wdro.WassersteinBall(0.1, wdro.costs.Norm(1))
    >>> problem = wdro.Problem(cp.Minimize(price @ x), [cp.sum(x) == 1], ball)
    >>> round(problem.solve(method="exact"), 2), AffineOnNorms.formula in problem.explain()
    (1.55, True)
    """
    register = COUNTERPARTS.decorator(name, replace)
    return register if given is None else register(given)


def build_in(name: str, given: Counterpart) -> None:
    """Register a counterpart of the library: it is asked after all others so far, and users'."""
    register_counterpart(name, given)
    BUILT_IN.append(name)


# ------------------------------------------------------------------ the choice
def counterparts() -> tuple[Counterpart, ...]:
    """All counterparts in the order in which they are asked: users' latest ones come first."""
    added = [name for name in COUNTERPARTS.names() if name not in BUILT_IN]
    return tuple(COUNTERPARTS[name] for name in (*reversed(added), *BUILT_IN))


def counterpart(model: RobustModel) -> Counterpart:
    """The first counterpart that applies; a NoReformulationError with all reasons if none does."""
    reasons: list[str] = []
    for entry in counterparts():
        reason = refusal_of(entry, model)
        if reason is None:
            return entry
        if reason not in reasons:
            reasons.append(reason)
    raise NoReformulationError(
        f"no exact robust counterpart is known for this model: {'; '.join(reasons)}",
        "method='smoothed' (any differentiable loss) or method='erm'",
    )


def has_counterpart(model: RobustModel) -> bool:
    """Does a counterpart apply to the model?"""
    return any(refusal_of(entry, model) is None for entry in counterparts())


def refusal_of(entry: Counterpart, model: RobustModel) -> str | None:
    """The reason why a counterpart does not apply, in words; None if it does."""
    reason = entry.refusal(model)
    if reason is None or (isinstance(reason, str) and reason):
        return reason
    raise TypeError(
        f"refusal of the counterpart {type(entry).__name__} must return None where it applies, and "
        f"the reason in words where it does not; it returned {reason!r}."
    )


def program_of(model: RobustModel) -> Program | None:
    """The program of the counterpart that applies."""
    return program_by(counterpart(model), model)


def program_by(entry: Counterpart, model: RobustModel) -> Program | None:
    """The program of a counterpart; an error that names it where it is none that can be solved."""
    program = entry.program(model)
    name = type(entry).__name__
    if program is not None and not isinstance(program, Program):
        raise TypeError(
            f"program of the counterpart {name} must return Program.if_convex(...) or None, got "
            f"{type(program).__name__}."
        )
    if program is not None and not entry.is_proven:
        _refuse_program(program, name)
    return program


def _refuse_program(program: Program, name: str) -> None:
    """Raise an error where a program is not one convex number under a list of constraints."""
    whose = f"program of the counterpart {name}"
    if not isinstance(program.constraints, list | tuple):
        raise TypeError(
            f"{whose} has as constraints one {type(program.constraints).__name__}; write "
            "Program(expression, [constraint])."
        )
    objective = program.expression
    if not isinstance(objective, cp.Expression) or objective.size != 1:
        shape = objective.shape if isinstance(objective, cp.Expression) else repr(objective)
        raise ValueError(f"{whose} must minimise one CVXPY number, got {shape}; sum or average it.")
    others = (p for c in program.constraints for p in c.parameters())
    parameters = [*objective.parameters(), *others]
    uncertain = sorted({p.name() for p in parameters if isinstance(p, UncertainParameter)})
    if uncertain:
        raise ValueError(
            f"{whose} still has the uncertain {', '.join(uncertain)} in it; put in numbers: "
            "substitute(model.expression, {parameter: sample})."
        )
    if not objective.is_convex() or not all(c.is_dcp() for c in program.constraints):
        raise ValueError(
            f"{whose} is not convex by CVXPY's rules: {objective} is "
            f"{objective.curvature.lower()}; return Program.if_convex(expression, constraints), "
            "which is None there."
        )


def objective_by(entry: Counterpart, model: RobustModel) -> Objective:
    """The smooth objective of a counterpart; an error that names it where it is none."""
    objective = entry.objective(model)
    name = f"objective of the counterpart {type(entry).__name__}"
    lacking = [part for part in ("evaluate", "convex") if not hasattr(objective, part)]
    if lacking:
        raise TypeError(
            f"{name} must return an object with evaluate(x, dual=None) -> Point and convex (a "
            f"bool); the {type(objective).__name__} that it returned lacks {' and '.join(lacking)}."
        )
    refuse_signature(f"evaluate of the {name}", objective.evaluate, "x", "dual")
    return objective


# ------------------------------------------------------------------ conditions on a model
def first_refusal(model: RobustModel, *conditions: Condition) -> str | None:
    """The first reason why a counterpart does not apply; None if there is none."""
    reasons = (condition(model) for condition in (needs_expression, *conditions))
    return next((reason for reason in reasons if reason is not None), None)


def needs_expression(model: RobustModel) -> str | None:
    if model.expression is None:
        return "the loss is a callable, its dependence on the data is not known"
    return None


def needs_affine(model: RobustModel) -> str | None:
    if not model.affine_in_data:
        return f"the loss is not affine in the data ({model.structure.describe()})"
    return None


def needs_quadratic_cost(*operations: str) -> Condition:
    """A quadratic cost that knows some operations."""
    return _needs_cost("quadratic", lambda cost: cost.is_quadratic, operations)


def needs_norm_cost(*operations: str) -> Condition:
    """A norm that knows some operations."""
    return _needs_cost("a norm", lambda cost: cost.is_norm, operations)


def needs_homogeneous_cost(*operations: str) -> Condition:
    """A norm or a quadratic cost that knows some operations."""
    return _needs_cost(
        "a norm or quadratic", lambda cost: cost.is_norm or cost.is_quadratic, operations
    )


def _needs_cost(
    name: str, is_such: Callable[[BoundCost], bool], operations: tuple[str, ...]
) -> Condition:
    def refusal(model: RobustModel) -> str | None:
        if not is_such(model.cost):
            return f"the ground cost is not {name} ({model.cost.describe()})"
        missing = [operation for operation in operations if not model.cost.knows(operation)]
        if missing:
            names = ", ".join(missing)
            return f"the ground cost does not know its {names} ({model.cost.describe()})"
        return None

    return refusal


def needs_separable_cost(model: RobustModel) -> str | None:
    if not model.cost.is_separable or not model.cost.knows("coordinate_weights"):
        return f"the ground cost couples the coordinates of a box ({model.cost.describe()})"
    return None


def needs_conic_cost(model: RobustModel) -> str | None:
    parts = model.cost.is_separable or bool(model.cost.frozen.any())
    if parts and not model.cost.knows("restricted"):
        return f"the ground cost does not know its restricted ({model.cost.describe()})"
    if not model.cost.is_conic:
        return (
            "a bounded support needs a ground cost whose conjugate is known, such as a norm with "
            f"p = 1, 2 or inf ({model.cost.describe()})"
        )
    return None


def needs_free_moves(model: RobustModel) -> str | None:
    return None if moves_freely(model) else f"the support is not R^d ({_supports(model)})"


def needs_box(model: RobustModel) -> str | None:
    return (
        None if model.joint.bounds is not None else f"the support is not a box ({_supports(model)})"
    )


def needs_polyhedron(model: RobustModel) -> str | None:
    if inequalities(model) is None:
        return f"the support is not given by linear inequalities ({_supports(model)})"
    return None


def _supports(model: RobustModel) -> str:
    return ", ".join(f"{p.name()} in {p.support!r}" for p in model.joint.parameters)


# ------------------------------------------------------------------ the support as inequalities
def moves_freely(model: RobustModel) -> bool:
    """Is the support R^d in all coordinates that may move?"""
    if all(isinstance(p.support, Everywhere) for p in model.joint.parameters):
        return True
    rows = inequalities(model)
    return rows is not None and len(rows[1]) == 0


def polyhedron(model: RobustModel) -> Inequalities:
    """C and h of a model whose support is known to be {C xi <= h}."""
    rows = inequalities(model)
    assert rows is not None
    return rows


def inequalities(model: RobustModel) -> Inequalities | None:
    """C and h with the support {C xi <= h}; None if it is not polyhedral.

    Rows that see only coordinates held fixed are left out: the samples meet them already.
    """
    return model.remember("inequalities of the support", lambda: _joint_inequalities(model))


def _joint_inequalities(model: RobustModel) -> Inequalities | None:
    blocks, limits = [], []
    for parameter in model.joint.parameters:
        rows = _parameter_inequalities(parameter.support, parameter.shape)
        if rows is None and model.cost.frozen[model.joint.slices[parameter]].all():
            rows = sp.csr_array((0, parameter.size)), np.zeros(0)
        if rows is None:
            return None
        blocks.append(rows[0])
        limits.append(rows[1])
    matrix = sp.csr_array(sp.block_diag(blocks, format="csr"))
    acts = np.asarray(abs(matrix[:, np.flatnonzero(~model.cost.frozen)]).sum(axis=1)).ravel() > 0
    return matrix[np.flatnonzero(acts)], np.concatenate(limits)[acts]


def _parameter_inequalities(support: Any, shape: tuple[int, ...]) -> Inequalities | None:
    if isinstance(support, Polyhedron):
        rows = sp.csr_array(support.A)
        lengths = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
        scale = 1.0 / np.where(lengths > 0, lengths, 1.0)  # rows of length one, in any unit
        return sp.csr_array(sp.diags_array(scale) @ rows), scale * np.asarray(support.b)
    box = support.bounds(shape)
    if box is None:
        return None
    lower, upper = (np.ravel(side) for side in box)
    identity = sp.eye_array(lower.size, format="csr")
    below, above = np.flatnonzero(np.isfinite(lower)), np.flatnonzero(np.isfinite(upper))
    rows = sp.vstack([-identity[below], identity[above]], format="csr")
    return rows, np.concatenate([-lower[below], upper[above]])
