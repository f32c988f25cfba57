"""The check that the domain of a loss in its data contains every point that the ball can reach.

Each atom states its domain by the fact `domain`: arguments that must be nonnegative. Their least
values over the support are exact where an argument is affine or convex in the data; other arguments
are evaluated at scenarios. A coordinate that the cost freezes takes the values of its samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.expressions.leaf import Leaf

from wdro_model.errors import UnboundedError
from wdro_model.loss.atoms.cvxpy_classes import ABS
from wdro_model.loss.atoms.facts import brief, facts_of
from wdro_model.loss.expressions import entry_of, substitute
from wdro_model.uncertainty.joint import JointSamples
from wdro_model.uncertainty.supports import Polyhedron

Array = np.ndarray


@dataclass(frozen=True)
class Tolerances:
    """Limits of the check of domains."""

    zero_value: float = 1e-8
    """Optimal value up to which a program's answer counts as 0: solvers err by this much."""
    zero_entry: float = 1e-6
    """Entry of a decision, relative to its largest one, up to which it counts as 0."""
    large_bound: float = 1e30
    """Number in place of infinite bounds in interval arithmetic, where 0 * inf is NaN."""
    most_programs: int = 50
    """Entries of an argument that are minimised by a program; each takes some milliseconds."""
    scenario_count: int = 200
    """Scenarios at which an argument is evaluated where no program gives its least value."""


TOLERANCES = Tolerances()


def refuse_outside_domain(
    expression: Any,
    joint: JointSamples,
    frozen: Array,
    decision: Mapping[cp.Variable, Array] | None = None,
) -> bool:
    """Raise an UnboundedError where the loss is undefined, or infinite, at data within reach.

    Returns True if the answer depends on the decision: check again when the decision is known.

    frozen: mask (d,) of the coordinates of the data that keep their observed values.
    decision: values of the variables; without it, arguments that depend on them are not checked.
    """
    if decision is not None:
        largest = max((float(np.abs(v).max(initial=0.0)) for v in decision.values()), default=0.0)
        small = TOLERANCES.zero_entry * largest
        rounded = {v: np.where(np.abs(a) <= small, 0.0, a) for v, a in decision.items()}
        expression = substitute(expression, rounded)
    reach: Reach | None = None
    depends = False
    for atom, directions in _atoms_with_directions(expression, frozenset({1})):
        for argument, limit in facts_of(atom).domain(atom):
            if not any(p in joint.slices for p in argument.parameters()):
                continue
            if argument.variables():
                depends = True
                continue
            reach = Reach(joint, frozen) if reach is None else reach
            least = reach.least_value(argument, limit)
            if isinstance(argument, ABS) and not np.isnan(limit):
                least = max(least, 0.0)  # across zero, |v| is zero; a ratio changes its sign
            known = decision is not None or (len(directions) == 1 and not np.isnan(limit))
            infinite = known and limit != 0 and any(not d * limit < 0 for d in directions)
            if least < 0 or (least == 0 and infinite):
                raise UnboundedError(_message(atom, argument, least, decision is not None))
            depends |= least == 0 and not known
    return depends


def _message(atom: Any, argument: Any, least: float, at_decision: bool) -> str:
    names = ", ".join(repr(p.name()) for p in argument.parameters())
    of, needed = (
        (argument.args[0], f"have one sign, and the support of {names} lets it be zero")
        if isinstance(argument, ABS)
        else (
            argument,
            f"be {'nonnegative' if least < 0 else 'positive'}, and goes down to {least:.4g} or "
            f"further over the support of {names}",
        )
    )
    return (
        "the worst-case risk over the ball is infinite or not defined"
        f"{' at the decision that was found' if at_decision else ''}: in the atom "
        f"{type(atom).__name__!r} of '{brief(atom)}', '{brief(of)}' must {needed}; give the "
        "parameter a support inside the domain, for instance "
        "support=wdro.supports.Box(lower, upper) with a positive lower bound, or keep it at its "
        "observed values by the weight np.inf in the cost"
        f"{', or constrain the decision' if at_decision else ''}."
    )


def _atoms_with_directions(e: Any, directions: frozenset[int]) -> Iterator[tuple[Any, Any]]:
    """(atom, directions) for each atom with parameters: the loss may rise as the atom does (1),
    or as the atom falls (-1)."""
    if isinstance(e, Leaf) or not e.parameters():
        return
    yield e, directions
    for k, argument in enumerate(e.args):
        rises, falls = e.is_incr(k), e.is_decr(k)
        signs = ({1} if rises or not falls else set()) | ({-1} if falls or not rises else set())
        signs = set() if rises and falls else signs
        own = frozenset(a * b for a in directions for b in signs)
        yield from _atoms_with_directions(argument, own)


class Reach:
    """The data that a ball of positive radius can reach: the support, and samples where frozen.

    frozen: mask (d,) of the coordinates that keep their observed values.
    """

    def __init__(self, joint: JointSamples, frozen: Array) -> None:
        self.joint = joint
        self.data: dict[Any, Any] = {}
        self.boxes: dict[Any, Any] = {}
        self.limits: list[Any] = []
        frozen = np.array(frozen, dtype=bool)
        self.sides = np.array([joint.matrix.min(axis=0), joint.matrix.max(axis=0)])
        for p, where in joint.slices.items():
            box = p.support.bounds(p.shape)
            if box is not None or isinstance(p.support, Polyhedron):
                given = [np.ravel(side) for side in box or ([-np.inf], [np.inf])]
                self.sides[:, where] = np.where(frozen[where], self.sides[:, where], given)
            else:  # a support given by a predicate has no bounds: take the range of the samples
                frozen[where] = True
            sides = joint.split(self.sides)[p]
            self.data[p] = cp.Variable(p.shape, bounds=[*sides])
            self.boxes[p] = cp.Variable(
                p.shape, bounds=[*np.clip(sides, -TOLERANCES.large_bound, TOLERANCES.large_bound)]
            )
            if box is None and isinstance(p.support, Polyhedron):
                inside = p.support.A @ cp.vec(self.data[p], order="C") <= p.support.b
                self.limits.append(inside)
        if frozen.any():
            shares = cp.Variable(joint.size, nonneg=True)
            flat = cp.hstack([cp.vec(v, order="C") for v in self.data.values()])
            observed = flat[frozen] == shares @ joint.matrix[:, frozen]
            self.limits += [cp.sum(shares) == 1, observed]

    def least_value(self, argument: Any, limit: float) -> float:
        """The least value of the entries of an argument; values within rounding of 0 count as 0.

        For |v| it is the larger one of the least values of v and -v: negative if v changes sign.
        Interval bounds may prove that the value is positive, and scenarios that it is not; where
        neither does, a program decides. limit: the limit of the atom where the argument goes to 0.
        """
        sides = [argument]
        if isinstance(argument, ABS):
            sides = [argument.args[0], -argument.args[0]]
        written, boxed = (
            [e.tree_copy({id(p): v for p, v in those.items()}) for e in sides]
            for those in (self.data, self.boxes)
        )
        with np.errstate(all="ignore"):
            below = np.max([np.ravel(e.get_bounds()[0], order="F") for e in boxed], axis=0)
            proven = below > 0 if limit else below >= 0
            if proven.all():
                return float(below.min())
            seen = np.array([self._least_at_scenarios(e) for e in written])
        least = float(seen.max(axis=0).min())
        for entry in np.flatnonzero(~proven)[: TOLERANCES.most_programs]:
            if least <= 0:
                break
            values = [self._least_of_entry(e, k, entry) for e, k in zip(written, seen)]
            least = min(least, max(values))
        return least

    def _least_of_entry(self, written: Any, seen: Array, entry: int) -> float:
        """The least value of an entry: by a program if convex, else `seen` at scenarios."""
        if not written.is_convex():
            return float(seen[entry])
        least = cp.Problem(cp.Minimize(entry_of(written, entry)), self.limits).solve()
        return 0.0 if abs(least) <= TOLERANCES.zero_value else float(least)

    def _least_at_scenarios(self, written: Any) -> Array:
        """The least value of each entry at scenarios near the samples and far from them."""
        rng, matrix, values = np.random.default_rng(0), self.joint.matrix, []
        for far in 10.0 ** rng.uniform(-3, 3, size=TOLERANCES.scenario_count):
            move = far * (1e-3 + matrix.std(axis=0)) * rng.standard_normal(matrix.shape[1])
            row = np.clip(matrix[rng.integers(len(matrix))] + move, *self.sides)
            if self.joint.contains(row[None])[0]:
                for p, value in self.joint.split(row[None]).items():
                    self.data[p].value = value[0]
                values.append(np.ravel(np.asarray(written.value, dtype=float), order="F"))
        return np.fmin.reduce(values, initial=np.inf)
