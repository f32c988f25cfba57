"""The domain of a loss in its data: does it contain every point that the ball can reach?

Each atom states its domain by the fact `domain`: arguments that must be nonnegative. Their least
values over the support are exact where an argument is affine or convex in the data; other arguments
are evaluated at scenarios. A coordinate that the cost freezes is judged at its samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.expressions.leaf import Leaf

from wdro_model.errors import UnboundedError
from wdro_model.loss.atoms.cvxpy_classes import ABS
from wdro_model.loss.atoms.facts import brief, facts_of
from wdro_model.loss.expressions import entry_of, substitute
from wdro_model.uncertainty.joint import JointSamples
from wdro_model.uncertainty.supports import Polyhedron

Array = np.ndarray

ROUNDING = 1e-12
"""Least values of at most this, relative to the terms of the argument, count as zero."""
NEGLIGIBLE = 1e-6
"""Entries of a decision below this, relative to its largest one, are zeros of a solver."""
PROGRAM_ROUNDING = 1e-8
"""The same for least values that a convex program finds."""
SCENARIOS = 200
"""Scenarios at which an argument is evaluated that is neither affine nor convex in the data."""


def refuse_outside_domain(
    expression: Any,
    joint: JointSamples,
    frozen: Array,
    decision: Mapping[cp.Variable, Array] | None = None,
) -> bool:
    """Raise an UnboundedError where the loss is undefined, or infinite, at data within reach.

    True if the answer depends on the decision, so that it has to be asked again.

    frozen: which coordinates of the data keep their observed values.
    decision: values of the variables; without it, arguments that depend on them are not judged.
    """
    if decision is not None:
        largest = max((float(np.abs(v).max(initial=0.0)) for v in decision.values()), default=0.0)
        small = NEGLIGIBLE * largest
        rounded = {v: np.where(np.abs(a) <= small, 0.0, a) for v, a in decision.items()}
        expression = substitute(expression, rounded)
    reach, depends = Reach(joint, frozen), False
    for atom, directions in _atoms_with_directions(expression, frozenset({1})):
        for argument, limit in facts_of(atom).domain(atom):
            if not reach.sees(argument):
                continue
            if argument.variables():
                depends = True
                continue
            least = float(reach.least_values(argument).min())
            known = decision is not None or (len(directions) == 1 and not np.isnan(limit))
            infinite = known and limit != 0 and any(not d * limit < 0 for d in directions)
            if least < 0 or (least == 0 and infinite):
                seen = Reach(joint, np.ones_like(reach.frozen)).least_values(argument).min()
                raise UnboundedError(_message(atom, argument, (least, seen), decision is not None))
            depends |= least == 0 and not known
    return depends


def _message(atom: Any, argument: Any, least: tuple[float, float], at_decision: bool) -> str:
    """least: values of the argument over the support, and over the samples."""
    names = ", ".join(repr(p.name()) for p in argument.parameters())
    support, seen = (f"{value:.4g}" for value in least)
    of, needed = (
        (argument.args[0], f"have one sign, and the support of {names} lets it be zero")
        if isinstance(argument, ABS)
        else (
            argument,
            f"be {'nonnegative' if least[0] < 0 else 'positive'}, and goes down to {support} over "
            f"the support of {names} (to {seen} over the samples)",
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
    """Each atom that sees data, and in which directions of it (1, -1) the loss may rise."""
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
    """The data that a ball of positive radius can reach: all of the support, where it may move."""

    def __init__(self, joint: JointSamples, frozen: Array) -> None:
        """frozen: which coordinates keep their observed values."""
        self.joint, self.frozen = joint, np.array(frozen, dtype=bool)
        self.data = {p: cp.Variable(p.shape, p.name()) for p in joint.parameters}
        self.lower, self.upper = joint.matrix.min(axis=0), joint.matrix.max(axis=0)
        for p, where in joint.slices.items():
            box = p.support.bounds(p.shape)
            if box is None and isinstance(p.support, Polyhedron):
                box = np.full(p.shape, -np.inf), np.full(p.shape, np.inf)
            if box is None:  # known through a predicate: as far as the samples go
                self.frozen[where] = True
                continue
            for side, bound in zip((self.lower, self.upper), box):
                side[where] = np.where(self.frozen[where], side[where], np.ravel(bound))

    def sees(self, argument: Any) -> bool:
        """Does the argument depend on the data?"""
        return any(p in self.joint.slices for p in argument.parameters())

    def least_values(self, argument: Any) -> Array:
        """The least value of each entry of the argument, those of rounding being 0.

        Of an absolute value: the larger one of its two sides, which is negative across zero.
        """
        if isinstance(argument, ABS):
            inner = argument.args[0]
            return np.maximum(self.least_values(inner), self.least_values(-inner))
        written = argument.tree_copy({id(p): v for p, v in self.data.items()})
        boxes = self.joint.bounds is not None or not written.variables()
        if written.is_affine() and (boxes or self.frozen.all()):
            return self._least_of_affine(written)
        if written.is_convex():
            entries = [entry_of(written, k) for k in range(written.size)]
            return np.array([self._least_of_convex(entry) for entry in entries])
        return self._least_seen(written)

    def _least_of_affine(self, written: Any) -> Array:
        """Each coordinate at the better one of its bounds, or all of them as observed."""
        rows = self.joint.split(np.zeros((1, self.joint.dimension)))
        for p, v in self.data.items():
            v.value = rows[p][0]
        constant = np.ravel(np.asarray(written.value, dtype=float), order="F")
        blocks, slopes = written.grad, []
        for p, v in self.data.items():
            block = blocks.get(v, np.zeros((v.size, constant.size)))
            block = sp.csr_array(block if sp.issparse(block) else np.reshape(block, (v.size, -1)))
            order = np.arange(v.size).reshape(p.shape).ravel(order="F")
            slopes.append(block[np.argsort(order)])
        slope = sp.csr_array(sp.vstack(slopes))
        moving = sp.coo_array(sp.diags_array((~self.frozen).astype(float)) @ slope)
        moving.eliminate_zeros()
        at, entry = moving.coords
        ends = np.where(moving.data > 0, self.lower[at], self.upper[at])
        terms = np.zeros((2, constant.size))
        np.add.at(terms[0], entry, moving.data * ends)
        np.add.at(terms[1], entry, np.abs(moving.data * ends))
        observed = self.joint.matrix * self.frozen @ slope
        least = constant + terms[0] + observed.min(axis=0)
        size = np.abs(constant) + terms[1] + np.abs(observed).max(axis=0)
        return np.where(np.isfinite(least) & (np.abs(least) <= ROUNDING * size), 0.0, least)

    def _least_of_convex(self, entry: Any) -> float:
        """By a convex program over the support."""
        limits = []
        for p, v in self.data.items():
            flat, where = cp.vec(v, order="C"), self.joint.slices[p]
            for side, sign in ((self.lower[where], 1), (self.upper[where], -1)):
                if (bound := np.isfinite(side)).any():
                    limits.append(sign * (flat[bound] - side[bound]) >= 0)
            if isinstance(p.support, Polyhedron):
                limits.append(p.support.A @ flat <= p.support.b)
        program = cp.Problem(cp.Minimize(entry), limits)
        least = float(program.solve())
        return 0.0 if abs(least) <= PROGRAM_ROUNDING else least

    def _least_seen(self, written: Any) -> Array:
        """At samples, corners and scenarios that are near and far."""
        rng, joint = np.random.default_rng(0), self.joint
        samples = joint.matrix[rng.integers(joint.size, size=SCENARIOS)]
        far = 10.0 ** rng.uniform(-1, 3, size=(SCENARIOS, 1))
        moves = far * (1e-3 + joint.matrix.std(axis=0)) * rng.standard_normal(samples.shape)
        rows = np.clip(samples + np.where(self.frozen, 0.0, moves), self.lower, self.upper)
        found = []
        for row in [*samples, *rows[joint.contains(rows)]]:
            for p, v in self.data.items():
                v.value = joint.split(row[None])[p][0]
            found.append(np.ravel(np.asarray(written.value, dtype=float)))
        return np.fmin.reduce(found)
