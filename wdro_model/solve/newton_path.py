"""Newton's method on smoothed maxima of decreasing temperature, over a convex set.

The forms of the samples are affine in some numbers w = (a_j, b_d) of each part, which are variables
of a cone program beside the decision. With u_kj the form j at sample k and p_kj its softmax at the
temperature m,

    F_m(w, t) = t + mean_k m log sum_j exp(u_kj / m),    rest <= t,

has gradients and Hessians that are sums over samples of products of their data: a matrix as wide as
w, whatever the number of samples. Each step minimises its quadratic model over the set.

    min over x in X of  mean_k f(x, xi_k) + g(x)

is smooth over the pairs (x, t) with g(x) <= t: many samples cost a gradient, not a cone each.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import clarabel
import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.reductions.solvers.conic_solvers.clarabel_conif import dims_to_solver_cones

from wdro_model.model import RobustModel
from wdro_model.model.feasible import near_if_unbounded
from wdro_model.objectives.empirical import Empirical, Program
from wdro_model.objectives.exact.maxima import Maxima, SampleMaxima
from wdro_model.sets.cone_program import canonicalise
from wdro_model.sets.convex import ConvexSet
from wdro_model.sets.deadlines import check_deadline, seconds_left
from wdro_model.sets.quadratic_program import quadratic_over
from wdro_model.solve.certify import Solution, report
from wdro_model.solve.first_order import display
from wdro_model.solve.options import Options
from wdro_model.solve.plan import Plan
from wdro_model.solve.start import refuse_outside, user_start
from wdro_model.solve.true_risk import robust_value
from wdro_model.solvers import QuasiNewton
from wdro_model.solvers.objective import Array, Point

COOLING = 4.0
"""The temperature falls by this factor."""
STEPS = 10
"""Newton steps at one temperature, at most."""
NEAR, FEW = 4.0, 3.0
"""Samples within so many temperatures of a change of piece are near it; the path ends when they are
fewer than so many times the numbers that can be chosen."""
ROUGH, SHARP = 1e-3, 1e-2
"""Of the temperature, what a step falls by when it is time for the next; at the end, of what one
sample near a change of piece counts, for each number that can be chosen."""
COLDEST = 1e-10
"""Of the first temperature."""
SURE = 1e-9
"""Samples whose largest form has all but this share of the softmax do not bend the objective."""
RIDGES = (1e-10, 1e-6, 1e-3)
"""Added to the Hessian, relative to its trace."""
SOLVED = (clarabel.SolverStatus.Solved, clarabel.SolverStatus.AlmostSolved)


@dataclass(frozen=True)
class PathEnd:
    """Where the path ended."""

    decision: Array
    """The flat decision, feasible up to the tolerance of the solver."""
    forms: list[Array]
    """Each form at each sample, (J, n), for each part."""
    steps: int


class NewtonPath:
    """The path for some maxima over a convex set.

    variables: the decision; its flat vector has their values in turn, each in row-major order.
    """

    def __init__(
        self,
        rows: Array,
        maxima: SampleMaxima,
        constraints: Sequence[Any],
        variables: Sequence[cp.Variable],
    ) -> None:
        self.rows, self.maxima = rows, maxima
        level = cp.Variable(name="terms without samples")
        widths = [part.width for part in maxima.parts]
        lifted = [cp.Variable(width) for width in widths]
        own: list[Any] = [w == part.numbers() for w, part in zip(lifted, maxima.parts)]
        below: Any = maxima.rest <= level
        self._program = canonicalise(
            [*constraints, *maxima.constraints, below, *own], [*variables, level, *lifted]
        )
        size = sum(variable.size for variable in variables)
        self.free = min(size, maxima.width)
        """The numbers that can be chosen."""
        where = self._program.decision.selection
        self.is_possible = where is not None
        if where is None:  # some variable is no part of the solver's vector, as symmetric ones
            return
        self._decision, self._level = where[:size], int(where[size])
        ends = size + 1 + np.cumsum([0, *widths])
        self._own = [where[a:b] for a, b in pairwise(ends.tolist())]
        self._all = np.concatenate(self._own)
        self._solver: Any = None
        self.y = np.zeros(self._program.A.shape[1])

    def run(self) -> PathEnd | None:
        """Follow the path; None where a step fails before the first temperature is done."""
        rest = np.zeros(self.y.size)
        rest[self._level] = 1.0
        start = self._step(rest, np.eye(self._all.size))
        if start is None:
            return None
        self.y = start
        forms = self._forms(self.y)
        first = warmth = max(float(np.mean([_spread(u) for u in forms])), 1e-12)
        steps, last = 0, False
        while True:
            enough = SHARP * self.free / len(self.rows) if last else ROUGH
            for _ in range(STEPS):
                check_deadline()
                found = self._newton(forms, warmth)
                if found is None:
                    return None if warmth == first else self._end(forms, steps)
                self.y, forms, fall = found
                steps += 1
                if fall <= enough * warmth:
                    break
            if last:
                return self._end(forms, steps)
            near = sum(int((margins(u) < NEAR * warmth).sum()) for u in forms)
            last = near < FEW * self.free or warmth < COLDEST * first
            warmth /= 1.0 if last else COOLING

    def decision(self) -> Array | None:
        """The flat decision where the path is; None before its start."""
        return self.y[self._decision] if self.y.any() else None

    def _end(self, forms: list[Array], steps: int) -> PathEnd:
        return PathEnd(self.y[self._decision], forms, steps)

    def _forms(self, y: Array) -> list[Array]:
        return [p.forms(y[w], self.rows) for p, w in zip(self.maxima.parts, self._own)]

    def _newton(self, forms: list[Array], warmth: float) -> tuple[Array, list[Array], float] | None:
        """The point after a step, its forms, and what the quadratic model falls by in it."""
        gradient, size = np.zeros(self.y.size), len(self.rows)
        gradient[self._level] = 1.0
        blocks = []
        for part, w, u in zip(self.maxima.parts, self._own, forms):
            slope, bend = derivatives(part, self.rows, u, warmth)
            gradient[w] += slope / size
            blocks.append(bend / size)
        hessian = np.asarray(sp.block_diag(blocks).todense())
        mean = float(np.trace(hessian)) / len(hessian)
        for ridge in RIDGES:
            reached = self._step(gradient, hessian + ridge * mean * np.eye(len(hessian)))
            if reached is None:
                continue
            move = reached - self.y
            fall = -float(gradient @ move)
            there = self._forms(reached)
            share = self._share(forms, there, float(move[self._level]), fall, warmth)
            mixed = [(1.0 - share) * a + share * b for a, b in zip(forms, there)]
            return self.y + share * move, mixed, max(fall, 0.0)
        return None

    def _share(
        self, here: list[Array], there: list[Array], rise: float, fall: float, warmth: float
    ) -> float:
        """How much of a step is taken: half of it, and half again, until the objective falls."""
        size, share = len(self.rows), 1.0
        before = sum(softened(u, warmth) for u in here) / size
        rounding = 1e-14 * (abs(before) + abs(rise))
        while share > 1e-6:
            mixed = (softened((1.0 - share) * a + share * b, warmth) for a, b in zip(here, there))
            if sum(mixed) / size + share * rise <= before - 1e-4 * share * fall + rounding:
                break
            share /= 2.0
        return share

    def _step(self, gradient: Array, curvature: Array) -> Array | None:
        """The minimiser of the quadratic model over the set; None if it is not found."""
        size = float(np.abs(gradient).max()) or 1.0
        row, column = np.triu_indices(self._all.size)
        a, b = self._all[row], self._all[column]
        entries = (curvature[row, column] / size, (np.minimum(a, b), np.maximum(a, b)))
        quadratic = sp.csc_array(sp.coo_array(entries, shape=(self.y.size,) * 2))
        limits = self._program.b - self._program.A @ self.y
        settings = clarabel.DefaultSettings()
        settings.verbose, settings.max_threads = False, 1
        settings.presolve_enable = settings.chordal_decomposition_enable = False
        if (left := seconds_left()) is not None:
            settings.time_limit = max(left, 0.05)
        if self._solver is None:
            cones = dims_to_solver_cones(self._program.dims)
            rows = sp.csc_array(self._program.A)
            self._solver = clarabel.DefaultSolver(
                quadratic, gradient / size, rows, limits, cones, settings
            )
        else:
            self._solver.update(P=quadratic, q=gradient / size, b=limits, settings=settings)
        found = self._solver.solve()
        return self.y + np.array(found.x) if found.status in SOLVED else None


def margins(forms: Array) -> Array:
    """How far the second largest form is below the largest, for each sample (n,)."""
    if len(forms) == 1:
        return np.full(forms.shape[1], np.inf)
    if len(forms) == 2:
        return np.abs(forms[0] - forms[1])
    two = np.partition(forms, -2, axis=0)[-2:]
    return two[1] - two[0]


def softened(forms: Array, warmth: float) -> float:
    """sum_k m log sum_j exp(u_kj / m)."""
    top = forms.max(axis=0)
    others = np.exp((forms - top) / warmth).sum(axis=0)
    return float(top.sum() + warmth * np.log(others).sum())


def derivatives(part: Maxima, rows: Array, forms: Array, warmth: float) -> tuple[Array, Array]:
    """The gradient (w,) and the Hessian (w, w) of `softened` in the numbers of a part.

    With p the softmax, q_d = sum over the forms along d of p s, and v_d the same of p s^2,

        d/da_j = sum p_j,   d/db_d = sum q_d xi,
        H(a_j, a_i) = sum p_j [j = i] - p_j p_i,   H(a_j, b_d) = sum p_j (s_j [d(j) = d] - q_d) xi,
        H(b_d, b_e) = sum (v_d [d = e] - q_d q_e) xi xi',    each over the temperature.
    """
    many, lines, wide = len(part.constants), len(part.directions), part.coordinates.size
    along = np.zeros((many, lines))
    along[np.arange(many), part.owners] = part.scales
    gradient, hessian = np.zeros(part.width), np.zeros((part.width, part.width))
    a, b = slice(0, many), slice(many, part.width)
    for where, data in part.blocks(rows):
        u = forms[:, where]
        p = np.exp((u - u.max(axis=0)) / warmth)
        p /= p.sum(axis=0)
        gradient[a] += p.sum(axis=1)
        gradient[b] += (along.T @ p @ data).ravel()
        bent = np.flatnonzero(p.max(axis=0) < 1.0 - SURE)
        p, data = p[:, bent], data[bent]
        q, v = along.T @ p, (along**2).T @ p
        hessian[a, a] += np.diag(p.sum(axis=1)) - p @ p.T
        for d in range(lines):
            own = slice(many + d * wide, many + (d + 1) * wide)
            hessian[a, own] += (p * (along[:, [d]] - q[d])) @ data
            for e in range(d, lines):
                weights = (v[d] if d == e else 0.0) - q[d] * q[e]
                other = slice(many + e * wide, many + (e + 1) * wide)
                hessian[own, other] += data.T @ (weights[:, None] * data)
    upper = np.triu(hessian)
    return gradient, (upper + np.triu(upper, 1).T) / warmth


def _spread(forms: Array) -> float:
    """The typical distance to a change of piece."""
    found = margins(forms)
    return float(found[np.isfinite(found)].mean()) if np.isfinite(found).any() else 0.0


# ------------------------------
# A smooth mean loss and what the ball adds to it, a program without samples


class Lifted:
    """mean_k f(x, xi_k) + t, a function of (x, t)."""

    convex = True

    def __init__(self, model: RobustModel) -> None:
        self._mean = Empirical(model)

    def evaluate(self, pair: Array, dual: float | None = None) -> Point:
        here = self._mean.evaluate(pair[:-1])
        return Point(here.value + float(pair[-1]), np.append(here.gradient, 1.0))

    def describe(self) -> str:
        return f"{self._mean.describe()}, and what the ball adds"


def run_composite(
    model: RobustModel, chosen: Plan, solver: QuasiNewton, options: Options
) -> Solution:
    """Quasi-Newton steps on the mean loss over an epigraph of the rest."""
    began, asked = time.perf_counter(), model.feasible.oracle().calls
    assert chosen.remainder is not None
    assert chosen.counterpart is not None
    whole = epigraph(model, chosen.remainder())
    start = quadratic_over(whole)(
        np.zeros(whole.dimension), np.eye(whole.dimension), _from(model, options)
    )
    if start is None:
        raise cp.error.SolverError("no point of the feasible set was found; use solver=Conic().")
    rng = np.random.default_rng(options.seed)
    left = solver
    if solver.time_limit is not None:
        left = replace(
            solver, time_limit=max(1e-9, solver.time_limit - (time.perf_counter() - began))
        )
    found = left.run(
        Lifted(model), near_if_unbounded(whole), start, rng=rng, **display(options, chosen)
    )
    x = found.x[:-1]
    value = robust_value(model, x, chosen.counterpart)
    point = Point(value, found.point.gradient[:-1])
    return report(
        model,
        chosen,
        solver,
        replace(found, x=x, point=point, lower_bound=-np.inf),
        point,
        found.gap,
        convex=True,
        began=began,
        same_objective=True,
        asked=asked,
    )


def epigraph(model: RobustModel, rest: Program) -> ConvexSet:
    """The pairs (x, t) with x feasible and g(x) <= t."""
    level = cp.Variable(name="what the ball adds")
    below: Any = rest.expression <= level
    constraints = [*model.feasible.conic_constraints(), *rest.constraints, below]
    return ConvexSet(constraints, [*model.feasible.layout.variables, level])


def _from(model: RobustModel, options: Options) -> Array:
    """The user's start, else 0; the nearest feasible pair is where the run begins."""
    if options.start is None:
        return np.zeros(model.feasible.layout.dimension + 1)
    start = user_start(model, options.start)
    refuse_outside(model, start)
    return np.append(start, 0.0)
