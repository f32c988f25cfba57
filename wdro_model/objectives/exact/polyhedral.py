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
from wdro_model.objectives.exact.at_decision import run_patiently, size_at
from wdro_model.objectives.exact.counterpart import Counterpart, Extremal
from wdro_model.objectives.exact.decomposition import Group, groups_of
from wdro_model.objectives.exact.duality import Part, Values, dual_program
from wdro_model.objectives.exact.pieces import Cluster, constant_cluster, numeric
from wdro_model.objectives.exact.primal import primal_extremal
from wdro_model.objectives.exact.refusals import (
    first_refusal,
    needs_homogeneous_cost,
    needs_polyhedron,
)
from wdro_model.objectives.exact.support import inequalities
from wdro_model.objectives.exact.vectorised import group_rows, piece_at
from wdro_model.objectives.programs import Program
from wdro_model.solvers.objective import Array

LARGEST = 5_000_000
"""At most so many multipliers of the support, over all samples and pieces."""


@dataclass(frozen=True)
class PolyhedralLoss(Counterpart):
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
            needs_coupled_pieces,
            needs_conic_cost,
            needs_few_multipliers,
        )

    def program(self, model: RobustModel) -> Program | None:
        return dual_program(model, self.groups(model), cluster_values)

    def value(self, model: RobustModel, x: Array) -> float:
        return conic_value(model, self.groups(model), x)

    def extremal(self, model: RobustModel, x: Array) -> Extremal:
        return primal_extremal(model, self.groups(model), x)

    def groups(self, model: RobustModel) -> tuple[Group, ...]:
        found = coupled_pieces(model)
        assert not isinstance(found, str)
        return found


def coupled_pieces(model: RobustModel) -> tuple[Group, ...] | str:
    """The pieces of the loss, in clusters that neither cost nor support couples."""
    found = inequalities(model)
    assert found is not None
    couplings = found[0]
    if model.cost.couplings is not None:
        couplings = sp.vstack([couplings, sp.csr_array(model.cost.couplings)], format="csr")
    return groups_of(model, "polyhedral", couplings=couplings, vectors=False)


def needs_coupled_pieces(model: RobustModel) -> str | None:
    found = coupled_pieces(model)
    return found if isinstance(found, str) else None


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


def needs_few_multipliers(model: RobustModel) -> str | None:
    found, groups = inequalities(model), coupled_pieces(model)
    assert found is not None
    assert not isinstance(groups, str)
    count = len(found[1]) * sum(
        len(g.index) * max((len(c.pieces) for c in g.clusters), default=0) for g in groups
    )
    return too_many_multipliers(count) if count > LARGEST else None


def too_many_multipliers(count: int) -> str:
    return (
        f"the finite program on the support has {count} multipliers, more than the {LARGEST} "
        "that are written out"
    )


def cluster_values(model: RobustModel, cluster: Part, rows: Array, dual: Any) -> Values:
    """For each piece sup_zeta a + <b, zeta> - l c(xi_k, zeta) as an n-vector, and constraints."""
    assert isinstance(cluster, Cluster)
    found = inequalities(model)
    assert found is not None
    matrix, limits = found
    where = cluster.moving
    if not len(where):
        return [piece_at(piece, cluster.seen, rows) for piece in cluster.pieces], []
    own = np.asarray(abs(matrix[:, where]).sum(axis=1)).ravel() > 0
    inside = matrix[np.flatnonzero(own)]
    cost = model.cost.restricted(where)
    slack = np.maximum(limits[own] - (inside @ rows.T).T, 0.0)
    values, constraints = [], []
    for piece in cluster.pieces:
        value = piece_at(piece, cluster.seen, rows)
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
    size, still = len(model.rows), 0.0
    fixed, unit = [], size_at(model, groups, x)
    for group in groups:
        rows = group_rows(group, model.rows)
        numbers = [numeric(model, cluster, x) for cluster in group.clusters]
        still += sum(float(c.values(rows).max(axis=1).sum()) for c in numbers)
        clusters = tuple(
            constant_cluster(n.over(unit), c.seen) for n, c in zip(numbers, group.clusters)
        )
        fixed.append(Group(group.index, clusters, (), (), group.held))
    certain = float(model.loss.values(x, model.rows).mean()) - still / size
    program = dual_program(model, tuple(fixed), cluster_values, cp.Constant(0.0))
    assert program is not None
    problem = cp.Problem(cp.Minimize(program.expression), list(program.constraints))
    run_patiently(problem)
    return certain + unit * float(problem.value)
