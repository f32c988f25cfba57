"""The feasible set of a problem: memberships `In(x, set)` and CVXPY constraints together.

As an oracle for Frank-Wolfe the feasible set is a product of blocks: one for each variable in an
oracle set, one for all that is said by CVXPY constraints. A variable with both is intersected
through the CVXPY form of its set. As a conic program, everything is a list of CVXPY constraints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any

import cvxpy as cp
import numpy as np
from cvxpy.constraints import Equality, Inequality, NonNeg, Zero

from wdro_model.errors import InfeasibleError, UnboundedError
from wdro_model.loss.atoms.risk import Threshold
from wdro_model.loss.batched import Layout
from wdro_model.loss.expressions import is_scalable
from wdro_model.sets.convex import ConvexSet, boolean_entries, integer_entries
from wdro_model.sets.feasible_set import FeasibleSet, In, forgets_its_constraints
from wdro_model.sets.product import ProductSet
from wdro_model.sets.quadratic_program import Nearby
from wdro_model.sets.rounding import is_binary
from wdro_model.uncertainty.parameter import UncertainParameter

if TYPE_CHECKING:
    from wdro_model.model.uncertain_constraints import UncertainConstraint

MARK = "_assigned_by_wdro"
"""The attribute of a variable that holds the array written last, and a copy of it."""


class Feasible:
    """The feasible set of a problem over all its variables."""

    def __init__(
        self,
        constraints: Sequence[Any],
        variables: Sequence[cp.Variable],
        uncertain: Sequence[UncertainConstraint] = (),
    ) -> None:
        self.memberships = [c for c in constraints if isinstance(c, In)]
        self.constraints = [c for c in constraints if not isinstance(c, In)]
        self.uncertain = tuple(uncertain)
        self.layout = Layout(variables)
        self._oracle: FeasibleSet | None = None
        self._oracle_stamp: tuple[Any, ...] = ()
        """The stamp of the uncertain constraints that the oracle was compiled for."""
        self._forms: list[Any] | None = None
        self.check_intersections()
        refuse_false_constants(self.constraints)

    @cached_property
    def parameters(self) -> list[cp.Parameter]:
        """The certain parameters of the constraints."""
        every = (p for c in self.declared if hasattr(c, "parameters") for p in c.parameters())
        return [p for p in every if not isinstance(p, UncertainParameter)]

    @cached_property
    def scalable(self) -> dict[cp.Variable, slice]:
        """The variables that can be measured in other units, and their places."""
        return {v: where for v, where in self.layout.slices.items() if is_scalable(v)}

    @property
    def has_oracle_sets(self) -> bool:
        """Is some variable in a set that is known through an oracle?"""
        return bool(self.memberships)

    @property
    def has_conic_form(self) -> bool:
        """Can all of it be written as CVXPY constraints?"""
        return all(m.set.has_constraints for m in self.memberships)

    @property
    def is_integer(self) -> bool:
        """Are some variables integer or boolean?"""
        return any(has_integers(v) for v in self.layout.variables)

    @property
    def discrete(self) -> np.ndarray:
        """Mask of the coordinates of the flat decision that are integers, (n,)."""
        mask = np.zeros(self.layout.dimension, dtype=bool)
        members = {m.variable for m in self.memberships}
        for variable, where in self.layout.slices.items():
            if has_integers(variable):
                mask[where] = True if variable in members else integer_entries(variable)
        return mask

    @property
    def is_binary(self) -> bool:
        """Are all coordinates 0 or 1?"""
        lower, upper = self.bounds()
        return bool(np.all(self.discrete & (lower >= 0) & (upper <= 1)))

    def oracle_blocks(self) -> list[tuple[FeasibleSet, np.ndarray]]:
        """The sets of variables that nothing else constrains, and their coordinates."""
        shared = self._shared()
        return [
            (m.set, np.r_[self.layout.slices[m.variable]])
            for m in self.memberships
            if m.variable not in shared
        ]

    def written_constraints(self) -> list[Any]:
        """The CVXPY constraints, uncertain ones by their worst case."""
        return [*self.constraints, *(c for u in self.uncertain for c in u.constraints())]

    def other_constraints(self) -> list[Any]:
        """CVXPY constraints for all the other variables."""
        shared = self._shared()
        forms = [c for m in self.memberships if m.variable in shared for c in m.constraints()]
        return [*self.written_constraints(), *forms]

    def set_forms(self) -> list[Any]:
        """Oracle sets by their CVXPY form."""
        if self._forms is None:
            self._forms = [c for m in self.memberships for c in m.constraints()]
        return self._forms

    def conic_constraints(self) -> list[Any]:
        """The feasible set as CVXPY constraints, oracle sets by their CVXPY form."""
        return [*self.written_constraints(), *self.set_forms()]

    def stamp(self) -> tuple[Any, ...]:
        """The numbers that uncertain constraints are written for."""
        return tuple(u.stamp() for u in self.uncertain)

    @property
    def has_oracle(self) -> bool:
        """Is there a linear minimisation oracle? No if integers have nonlinear constraints."""
        alone = {m.variable for m in self.memberships} - self._shared()
        if not any(has_integers(v) for v in self.layout.variables if v not in alone):
            return True
        return all(map(is_linear, self.other_constraints()))

    def oracle(self) -> FeasibleSet:
        """The linear minimisation oracle over the flat decision, compiled once."""
        stamp = self.stamp()
        if self._oracle is None or not self._oracle.is_current() or stamp != self._oracle_stamp:
            self._oracle, self._oracle_stamp = self._compile(), stamp
        return self._oracle

    def with_uncertain(self, uncertain: Sequence[UncertainConstraint]) -> Feasible:
        """The same set with other uncertain constraints."""
        twin = copy(self)
        twin.uncertain, twin._oracle = tuple(uncertain), None
        twin.__dict__.pop("parameters", None)
        return twin

    def exceeds(self, x: np.ndarray, tolerance: float) -> bool:
        """Does a decision violate some uncertain constraint by more than the tolerance?"""
        values = self.layout.split_user(x)
        return any(u.excess(values) > tolerance for u in self.uncertain)

    def pass_on_multipliers(self) -> None:
        """Give uncertain constraints the multipliers of the certain ones they are written as."""
        for constraint in self.uncertain:
            constraint.pass_on_multipliers()

    @property
    def declared(self) -> list[Any]:
        """The user's constraints other than memberships."""
        return [*self.constraints, *(u.original for u in self.uncertain)]

    def check_nonempty(self) -> None:
        """Raise an InfeasibleError if the CVXPY constraints leave no point.

        A point that meets them settles it without an oracle. Simplices, cones and boxes often
        contain one of three simple points, which are tried first.
        """
        levels = () if self.memberships else (lambda v: 1.0 / v.size, lambda v: 0.0, lambda v: 1.0)
        for level in levels:
            point = {v: v.project(np.full(v.shape, level(v))) for v in self.layout.variables}
            with self.layout.holding(self.layout.join(point)):
                if meets(self.constraints, tolerance=0.0):
                    return
        self.oracle().check_nonempty()

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Variables and multipliers keep their values, whatever is solved inside the block."""
        marks = [(v, getattr(v, MARK)) for v in self.layout.variables if hasattr(v, MARK)]
        try:
            with self.layout.holding(), multipliers_kept(self.declared):
                yield
        finally:
            for variable, mark in marks:  # a value that the library wrote still counts as its own
                setattr(variable, MARK, mark)

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Bounds of each coordinate as far as they are declared, infinite elsewhere."""
        lower = np.full(self.layout.dimension, -np.inf)
        upper = np.full(self.layout.dimension, np.inf)
        for variable, where in self.layout.slices.items():
            if variable.is_nonneg():
                lower[where] = 0.0
            if variable.is_nonpos():
                upper[where] = 0.0
            boolean = np.r_[where][boolean_entries(variable)]
            lower[boolean], upper[boolean] = 0.0, 1.0
        for member in self.memberships:
            if member.set.bounds is not None:
                where = self.layout.slices[member.variable]
                lower[where] = np.maximum(lower[where], member.set.bounds[0])
                upper[where] = np.minimum(upper[where], member.set.bounds[1])
        return lower, upper

    def describe(self) -> list[str]:
        """The parts of the feasible set, a line for each."""
        lines = [f"{m.variable.name()} in {m.set.describe()}" for m in self.memberships]
        if self.constraints:
            lines.append(f"{len(self.constraints)} CVXPY constraint(s)")
        if self.uncertain:
            lines.append(f"{len(self.uncertain)} uncertain constraint(s)")
        named = {m.variable for m in self.memberships}
        free = [v.name() for v in self.layout.variables if v not in named]
        if free and not self.declared:
            lines.append(f"{', '.join(free)}: declared attributes only")
        return lines

    def _compile(self) -> FeasibleSet:
        shared = self._shared()
        alone = [m for m in self.memberships if m.variable not in shared]
        taken = {m.variable for m in alone}
        rest = [v for v in self.layout.variables if v not in taken]
        blocks: list[tuple[FeasibleSet, slice | np.ndarray]] = [
            (m.set, self.layout.slices[m.variable]) for m in alone
        ]
        if rest:
            where = np.concatenate([np.r_[self.layout.slices[v]] for v in rest])
            # First-order objectives minimise thresholds out, so the oracle may fix them at 0.
            still = [t == 0 for t in rest if isinstance(t, Threshold)]
            blocks.append((ConvexSet([*self.other_constraints(), *still], rest), where))
        if len(blocks) == 1:
            return near_if_unbounded(blocks[0][0])
        return ProductSet(blocks)

    def _shared(self) -> set[cp.Variable]:
        """Variables in an oracle set that something else constrains as well."""
        constrained = {v for c in self.declared if hasattr(c, "variables") for v in c.variables()}
        members = [m.variable for m in self.memberships]
        twice = {v for v in members if sum(v is w for w in members) > 1}
        declared = {m.variable for m in self.memberships if adds_bounds(m)}
        return (constrained & set(members)) | twice | declared

    def check_intersections(self) -> None:
        """A ValueError where something else constrains a variable of a set without CVXPY form."""
        shared = self._shared()
        for member in self.memberships:
            name = member.variable.name()
            if has_integers(member.variable):
                refuse_continuous(member)
            if member.variable in shared and not member.set.has_constraints:
                declared = [k for k, v in member.variable.attributes.items() if v]
                written = forgets_its_constraints(member.set)
                form = (
                    "has_constraints = True beside its constraints(x)"
                    if written
                    else ("a CVXPY form (constraints=)")
                )
                asked = f" (declared {', '.join(declared)})" if adds_bounds(member) else ""
                raise ValueError(
                    f"{member.set.describe()} is known only through an oracle, and an oracle set "
                    f"cannot be intersected with other constraints on {name!r}{asked}; drop them, "
                    f"give the set {form}, or build them into its oracle."
                )


def is_linear(constraint: Any) -> bool:
    """True for linear inequalities, up to maxima in their arguments, and for True and False."""
    linear = isinstance(constraint, Inequality | Equality | NonNeg | Zero)
    return not hasattr(constraint, "args") or (linear and all(a.is_pwl() for a in constraint.args))


def near_if_unbounded(only: FeasibleSet) -> FeasibleSet:
    """The set itself if it is bounded; else `Nearby`, its part around the current point."""
    if not isinstance(only, ConvexSet) or only.program.is_integer:
        return only
    try:
        only.check_bounded()
    except UnboundedError:
        return Nearby(only)
    except InfeasibleError:  # reported when the set is asked for a point
        return only
    return only


def refuse_false_constants(constraints: Sequence[Any]) -> None:
    """A constraint without variables either says nothing or makes the set empty."""
    for constraint in constraints:
        constant = isinstance(constraint, (bool, np.bool_))
        known = not constant and not constraint.variables()
        if known and any(p.value is None for p in constraint.parameters()):
            continue
        if (constant and not constraint) or (known and not constraint.value(tolerance=1e-8)):
            raise InfeasibleError(
                f"the feasible set is empty: the constraint {constraint} has no variable and does "
                "not hold; remove it or correct its constants."
            )


def meets(constraints: Sequence[Any], tolerance: float) -> bool:
    """Do the variables' values violate no constraint by more than the tolerance?"""
    return all(
        bool(np.max(constraint.violation()) <= tolerance)
        for constraint in constraints
        if not isinstance(constraint, (bool, np.bool_))
    )


def has_integers(variable: cp.Variable) -> bool:
    """Is the variable integer or boolean, in full or in part?"""
    return any(bool(variable.attributes.get(name)) for name in ("boolean", "integer"))


def refuse_continuous(member: In) -> None:
    """An integer variable in a set whose points are no integers is an error."""
    declared = np.any(boolean_entries(member.variable))
    if declared and not all(is_binary(vertex) for vertex in _wide_vertices(member.set)):
        raise ValueError(
            f"the variable {member.variable.name()!r} is declared boolean and lies in "
            f"{member.set.describe()}, whose points have other entries than 0 and 1; leave the "
            "attribute out, or write the set as CVXPY constraints."
        )
    try:
        member.set.check_rounds()
    except ValueError as error:
        raise ValueError(
            f"the variable {member.variable.name()!r} is declared integer or boolean and lies in "
            f"{member.set.describe()}, whose points are not: {error} Leave the attribute out."
        ) from None


def _wide_vertices(feasible: FeasibleSet) -> Iterator[np.ndarray]:
    """Vertices, among them some with an entry beside 0 and 1 if the set has any by its bounds."""
    yield feasible.minimize(np.ones(feasible.dimension))
    if feasible.bounds is None or feasible.nonnegative_directions:
        return
    lower, upper = feasible.bounds
    for sign, wide in ((1.0, lower < 0), (-1.0, upper > 1)):
        for i in np.flatnonzero(wide).tolist():
            yield feasible.minimize(sign * np.eye(1, feasible.dimension, i)[0])


def adds_bounds(member: In) -> bool:
    """Do the variable's own attributes ask for more than its set already ensures?"""
    asked = {
        k: v for k, v in member.variable.attributes.items() if v is not None and v is not False
    }
    # The points of an oracle set with integer variables are discrete already.
    asked.pop("boolean", None)
    asked.pop("integer", None)
    lower, upper = (-np.inf, np.inf) if member.set.bounds is None else member.set.bounds
    if np.all(np.asarray(lower) >= 0):
        asked.pop("nonneg", None)
    if np.all(np.asarray(upper) <= 0):
        asked.pop("nonpos", None)
    if "bounds" in asked:
        low, high = (np.ravel(np.broadcast_to(b, member.variable.shape)) for b in asked["bounds"])
        if np.all(low <= lower) and np.all(high >= upper):
            asked.pop("bounds")
    return bool(asked)


# ------------------------------------------------------------------ values of variables
# Problems share their variables: after a solve of one, `x.value` is its decision, whichever problem
# is asked next. A value that the library wrote is therefore not a decision of the user's; one that
# was set since, by hand or by a CVXPY problem, is.
def assign(decision: Mapping[cp.Variable, Any]) -> None:
    """Give the variables the values of a decision, and remember that it was not the user."""
    for variable, value in decision.items():
        variable.save_value(np.array(value))
        setattr(variable, MARK, (variable._value, np.array(variable._value)))


def set_by_hand(variable: cp.Variable) -> bool:
    """Does the variable have a value that this library did not give it?"""
    if variable._value is None:
        return False
    if not hasattr(variable, MARK):
        return True
    array, copy = getattr(variable, MARK)
    # Values of sparse variables are gathered anew whenever they are written.
    same = variable._value is array or variable.sparse_idx is not None
    return not (same and np.array_equal(variable._value, copy))


def forget_multipliers(constraints: Sequence[Any]) -> None:
    """Clear the dual values of constraints after a solve that has none."""
    for dual, _ in _multipliers(constraints):
        dual.save_value(None)


@contextmanager
def multipliers_kept(constraints: Sequence[Any]) -> Iterator[None]:
    """Constraints get back the dual values they had."""
    before = _multipliers(constraints)
    try:
        yield
    finally:
        for dual, value in before:
            dual.save_value(value)


def _multipliers(constraints: Sequence[Any]) -> list[tuple[Any, Any]]:
    """The dual variables of CVXPY constraints with their values; True and False have none."""
    return [(dual, dual.value) for c in constraints for dual in getattr(c, "dual_variables", ())]
