"""Maxima of affine pieces on a polyhedral support {C xi <= h}: a finite convex program.

For one sample and one piece, by duality with multipliers g >= 0 of the support,

    sup { <b, zeta> - l c(xi, zeta) : C zeta <= h } = min_g <b, xi> + <g, h - C xi> + p(b - C' g),

with p(u) = |u|^2 / (4 l) for a quadratic cost, and for a norm p = 0 where |u|_dual <= l. The
multipliers of all samples are one matrix for each piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from wdro_model.model import RobustModel
from wdro_model.objectives.empirical import Program
from wdro_model.objectives.exact.adversary_program import run_patiently, size_at, solve_adversary
from wdro_model.objectives.exact.clusters import Cluster
from wdro_model.objectives.exact.counterpart import (
    Extremal,
    first_refusal,
    needs_conic_cost,
    needs_homogeneous_cost,
    needs_polyhedron,
)
from wdro_model.objectives.exact.decomposition import Group, Part, PiecewiseCounterpart, groups_of
from wdro_model.objectives.exact.max_affine_everywhere import Values, dual_program
from wdro_model.objectives.exact.polyhedral_support import polyhedron
from wdro_model.solvers.objective import Array

LARGEST = 5_000_000
"""At most so many multipliers of the support, over all samples and pieces."""


@dataclass(frozen=True)
class MaxAffineOnPolyhedron(PiecewiseCounterpart):
    """A maximum of affine pieces, or a sum of such terms; norm or quadratic cost; polyhedron."""

    formula = (
        "min over l and g_kj >= 0 of l radius + mean_k max_j a_j + <b_j, xi_k> + <g_kj, h - C xi_k>"
        " + the conjugate of the cost at b_j - C' g_kj, support {C xi <= h}"
    )

    def refusal(self, model: RobustModel) -> str | None:
        return first_refusal(
            model,
            needs_homogeneous_cost("dual_norms"),
            needs_polyhedron,
            self.needs_pieces,
            needs_conic_cost,
            self.needs_few_multipliers,
        )

    def program(self, model: RobustModel) -> Program | None:
        return dual_program(model, self.groups(model), values_on_polyhedron)

    def value(self, model: RobustModel, x: Array) -> float:
        return conic_value(model, self.groups(model), x)

    def extremal(self, model: RobustModel, x: Array) -> Extremal:
        return solve_adversary(model, self.groups(model), x)

    def pieces(self, model: RobustModel) -> tuple[Group, ...] | str:
        """In clusters that neither cost nor support couples."""
        couplings = polyhedron(model)[0]
        if model.cost.couplings is not None:
            couplings = sp.vstack([couplings, sp.csr_array(model.cost.couplings)], format="csr")
        return groups_of(model, "polyhedral", couplings=couplings, vectors=False)

    def needs_few_multipliers(self, model: RobustModel) -> str | None:
        pieces = (
            len(group.index) * max((len(c.pieces) for c in group.clusters), default=0)
            for group in self.groups(model)
        )
        return too_many_multipliers(len(polyhedron(model)[1]) * sum(pieces))


def too_many_multipliers(count: int) -> str | None:
    """The refusal of a program with so many multipliers of the support; None if it is small."""
    if count <= LARGEST:
        return None
    return (
        f"the finite program on the support has {count} multipliers, more than the {LARGEST} "
        "that are written out"
    )


def values_on_polyhedron(model: RobustModel, cluster: Part, rows: Array, dual: Any) -> Values:
    """For each piece sup_zeta a + <b, zeta> - l c(xi_k, zeta) as an n-vector, and constraints."""
    assert isinstance(cluster, Cluster)
    matrix, limits = polyhedron(model)
    where, plain = cluster.moving, cluster.values(rows)
    if not len(where):
        return plain, []
    own = np.asarray(abs(matrix[:, where]).sum(axis=1)).ravel() > 0
    inside = matrix[np.flatnonzero(own)]
    cost = model.cost.restricted(where)
    slack = np.maximum(limits[own] - (inside @ rows.T).T, 0.0)
    values, constraints = [], []
    for piece, value in zip(cluster.pieces, plain):
        slope = cp.reshape(piece.slope[where], (1, len(where)), order="C")
        left = np.ones((len(rows), 1)) @ slope
        if own.any():
            multipliers = cp.Variable(slack.shape, nonneg=True)
            value = value + cp.sum(cp.multiply(slack, multipliers), axis=1)
            left = left - multipliers @ inside[:, where]
        bonus, more = cost.conjugate(left, dual)
        values.append(value if bonus is None else value + bonus)
        constraints += more
    return values, constraints


def conic_value(model: RobustModel, groups: tuple[Group, ...], x: Array) -> float:
    """The same program with the decision held fixed, the loss in units of what it is there."""
    still = 0.0
    fixed, unit = [], size_at(model, groups, x)
    for group in groups:
        rows = group.rows(model)
        numbers = [cluster.numeric(model, x) for cluster in group.clusters]
        shares = group.shares(model)
        still += sum(float(shares.total(c.values(rows).max(axis=1))) for c in numbers)
        clusters = tuple(
            n.over(unit).as_expressions(c.seen) for n, c in zip(numbers, group.clusters)
        )
        fixed.append(Group(group.index, clusters, (), (), group.held))
    certain = float(model.shares.total(model.loss.values(x, model.rows))) - still
    program = dual_program(model, tuple(fixed), values_on_polyhedron, cp.Constant(0.0))
    assert program is not None
    problem = cp.Problem(cp.Minimize(program.expression), list(program.constraints))
    run_patiently(problem)
    return certain + unit * float(problem.value)
