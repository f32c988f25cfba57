"""Integrals of exp(g_k) over one or two coordinates by adaptive cells, for many samples at once.

Each cell has the nodes of a Gauss-Kronrod rule. The rule minus its embedded Gauss rule, line by
line along each axis, estimates the error and tells the axis that causes it. Cells are halved along
that axis until the errors of a sample add up to less than a tolerance of its integral.

A peak of exp(g) may be much narrower than the nodes are apart. Therefore g itself is interpolated
between the nodes, up to the corners; its last Legendre coefficients bound the error of that. A
cell is also halved if g may be so high between the nodes that the cell matters though its nodes do
not. A scan at doubling distances tells how far the cells must reach, and whether g rises without
end.

The loss is evaluated once at each node. For another dual variable g is recombined from the stored
numbers, errors are estimated anew, and cells are halved further only if that is necessary.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Protocol

import numpy as np
from numpy.polynomial import legendre

from wdro_model.objectives.integration.cell_regions import (
    OCTAVES,
    CellRegion,
    divisible,
    halve_cells,
    node_positions,
)
from wdro_model.objectives.integration.normal import HALF_LOG_2PI, truncated_normal
from wdro_model.sets.deadlines import check_deadline
from wdro_model.solvers.objective import Array


@dataclass(frozen=True)
class Tolerances:
    """Limits of the refinement; heights in the log of the density, lengths in deviations of the
    reference."""

    reference_error: float = 1e-9
    """Estimated relative error of the mass that the reference gives to a polyhedron."""
    window: float = 60.0
    """Points at which g lies so far below its top carry no mass."""
    hidden: float = 2.5
    """Excess of the bound of g in a cell over its highest node from which the cell is halved."""
    error_share: float = 0.2
    """A cell is halved along each axis with this share of the worst axis's error."""
    range_share: float = 0.3
    """The same for the range of g, in cells that may hide a peak."""
    least_reach: float = 8.0
    """Length that the first cells reach at least."""
    farthest: float = float(OCTAVES[-1])
    """Length beyond which g is taken to rise without end."""
    largest: float = 1e15
    """Size of an exponent from which rounding leaves no correct digits."""
    rounds: int = 120
    """Rounds of halving."""
    most_nodes: int = 2**22
    """Nodes of all samples together, at most; each sample gets an equal share."""
    caution: float = 2.0
    """Assumed error of an interpolated function, in multiples of its last coefficients."""


LIMITS = Tolerances()
MOST_CELLS = {1: 1000, 2: 4000}
"""Cells of one sample, at most, on one and on two coordinates."""
GAUSS_POINTS = {1: 7, 2: 4}
"""Points of the embedded rule in one and in two dimensions."""


class CellIntegrand(Protocol):
    """Exponents g_k(y; l) of some samples, from numbers at the nodes that do not depend on l.

    `by_cells.Tilt` and `conditional.loss.BlockTarget` are such integrands.
    """

    def evaluate_points(self, owners: Array, moves: Array) -> tuple[Array, ...]:
        """The numbers of points with moves y (B, r), as arrays (B, ...).

        The first of them is NaN where the loss is not defined, and -inf where a move is ruled out.
        """
        ...

    def exponents(self, data: tuple[Array, ...], owners: Array, dual: float) -> Array:
        """g (K, S) at S points of the samples `owners` (K,), from their numbers (K, S, ...)."""
        ...


@dataclass(frozen=True)
class Resolved:
    """The integrals at one dual variable."""

    dual: float
    log_mass: Array
    """log of the integral of exp(g) in t, (K,)."""
    shares: Array
    """Densities of the nodes in their sample, (C, S)."""
    rule: Array
    """Weights of the nodes of a cell, (S,)."""
    error: Array
    """The estimated relative error of each integral, (K,)."""

    @property
    def diverges(self) -> bool:
        return bool(np.isposinf(self.log_mass).any())

    @cached_property
    def weights(self) -> Array:
        """Probabilities of the nodes in their sample, (C, S)."""
        return self.shares * self.rule


class CellIntegral:
    """The integrals of some samples at one decision, and their cells.

    Parameters
    ----------
    deviation: of the reference, the unit of the cells, (r,).
    tolerance: the relative error of each integral.
    """

    def __init__(
        self,
        integrand: CellIntegrand,
        region: CellRegion,
        deviation: Array,
        samples: Array,
        tolerance: float,
    ) -> None:
        self.samples, self.tolerance = samples, tolerance
        self._integrand, self._region, self._deviation = integrand, region, deviation
        self._rule = cell_rule(region.dimension)
        self._mesh = self._rule.mesh()
        share = LIMITS.most_nodes // (self._rule.size * max(1, len(samples)))
        self._most_cells = min(MOST_CELLS[region.dimension], max(16, share))
        points = region.scan(samples)
        owners, shape = np.repeat(samples, points.shape[1]), points.shape[:2]
        flat = points.reshape(-1, region.dimension)
        self._scan_points = points
        self._scan_inside = region.contains(owners, flat).reshape(shape)
        data = self._defined(integrand.evaluate_points(owners, flat * deviation))
        self._scanned = tuple(part.reshape(*shape, *part.shape[1:]) for part in data)
        self._reach = np.zeros(len(samples))
        """How far the cells of each sample reach, (K,)."""
        self.position = np.zeros(0, dtype=int)
        """Positions of the cells' samples among the given ones, (C,), in order."""
        size = self._rule.size
        self.node_data = tuple(np.zeros((0, size, *part.shape[2:])) for part in self._scanned)
        """The numbers of the nodes, arrays (C, S, ...)."""
        self._cells = np.zeros((0, 2 if region.dimension == 1 else 6))
        self._jacobian = np.zeros((0, size))
        self._holes = self._undefined = np.zeros(0, dtype=bool)
        """Masks (C,) of cells with a node of weight 0, and of cells with an undefined loss."""
        self._last: Resolved | None = None

    @property
    def owners(self) -> Array:
        """The samples of the cells, (C,)."""
        return self.samples[self.position]

    def moves(self) -> Array:
        """The moves y of the nodes, (C, S, r)."""
        return node_positions(self._cells, self._mesh)[0] * self._deviation

    # -------------------------------------------------------------- the integrals
    def evaluate(self, dual: float) -> Resolved:
        """The integrals, resolved at this dual variable."""
        if self._last is None or self._last.dual != dual:
            with np.errstate(all="ignore"):
                self._last = self._resolve(dual)
        return self._last

    def _resolve(self, dual: float) -> Resolved:
        needed = self._needed_reach(dual)
        if np.isinf(needed).any():
            return self._infinite(dual)
        self._extend(needed)
        for _ in range(LIMITS.rounds):
            check_deadline()
            resolved, axes, beyond = self._integrate(dual)
            if beyond.any():
                needed = np.where(beyond, 4 * self._reach, 0.0)
                if (needed > LIMITS.farthest).any():
                    return self._infinite(dual)
                self._extend(needed)
            elif resolved.diverges or not axes.any():
                break
            else:
                cut: Array = np.any(axes, axis=1)
                cells, source = halve_cells(self._cells[cut], axes[cut])
                self._replace(cut, self.position[cut][source], cells)
        return resolved

    def _infinite(self, dual: float) -> Resolved:
        none = np.full(len(self.samples), np.inf)
        return Resolved(dual, none, np.zeros((0, 0)), np.zeros(0), none)

    def _integrate(self, dual: float) -> tuple[Resolved, Array, Array]:
        """The integrals on the present cells, and what must be refined.

        The latter is a mask (C, r) of axes along which cells are to be halved, and a mask (K,) of
        samples whose cells do not reach far enough.
        """
        rule, position, size = self._rule, self.position, len(self.samples)
        nowhere = np.zeros((0, 1), dtype=bool)
        first = np.searchsorted(position, np.arange(size))
        logs = self._integrand.exponents(self.node_data, self.owners, dual) + self._jacobian
        heights = logs.max(axis=1)
        top = np.maximum.reduceat(heights, first)
        if np.isposinf(top).any():
            return self._infinite(dual), nowhere, np.zeros(size, dtype=bool)
        if (self._undefined & (heights > top[position] - LIMITS.window)).any():
            raise FloatingPointError(
                "the loss is not defined for scenarios of the support that matter; keep decision "
                "and data inside its domain (bounds on the variables, a support for the uncertain "
                "parameters)."
            )
        density = np.exp(logs - top[position, None])
        mass, errors = rule.integrate(density)
        total = np.add.reduceat(mass, first)
        log_mass = top + np.log(total)
        errors /= total[position, None]
        worst = errors.sum(axis=1)
        # The mass that a cell may hold between its nodes.
        highest = np.where(self._holes, heights, rule.bound(logs))
        share = highest - log_mass[position]
        blind = (highest > heights + LIMITS.hidden) & (share > np.log(0.1 * self.tolerance))
        worst += np.where(blind, np.exp(np.minimum(share, 0.0)), 0.0)
        error = np.add.reduceat(worst, first)
        outside = np.abs(self._cells).max(axis=1) >= self._reach[position] * (1 - 1e-9)
        over = outside & (blind | (heights > top[position] - 0.5 * LIMITS.window))
        beyond = np.zeros(size, dtype=bool)
        beyond[position[over]] = True
        density /= total[position, None]
        resolved = Resolved(dual, log_mass, density, rule.product_weights(), error)
        if not (error > self.tolerance).any():
            return resolved, nowhere, beyond
        return resolved, self._rough_axes(errors, worst, error, blind, logs), beyond

    def _rough_axes(
        self, errors: Array, worst: Array, error: Array, blind: Array, logs: Array
    ) -> Array:
        """A mask (C, r) of axes to halve, in the cells with the largest errors.

        The errors of all other cells add up to at most half of the tolerance.
        """
        position = self.position
        order = np.lexsort((worst, position))
        sums = np.cumsum(worst[order])
        first = np.searchsorted(position, np.arange(len(self.samples)))
        before = np.append(0.0, sums)[first]
        small = np.empty(len(worst), dtype=bool)
        small[order] = sums - before[position[order]] <= 0.5 * self.tolerance
        count = np.bincount(position, minlength=len(self.samples))
        rough = ~small & ((error > self.tolerance) & (count < self._most_cells))[position]
        axes = errors > LIMITS.error_share * errors.max(axis=1, keepdims=True)
        some = np.flatnonzero(rough & blind)
        spread = self._rule.ranges(logs[some])
        axes[some] = spread >= LIMITS.range_share * spread.max(axis=1, keepdims=True)
        return axes & rough[:, None] & divisible(self._cells)

    # -------------------------------------------------------------- the reach of the cells
    def _needed_reach(self, dual: float) -> Array:
        """The reach that the cells of each sample need, (K,); infinite if g rises without end."""
        points, size = self._scan_points, len(self.samples)
        g = self._integrand.exponents(self._scanned, self.samples, dual)
        g = np.where(self._scan_inside, g, -np.inf)
        away = np.abs(points).max(axis=2)
        seen = g > g.max(axis=1, keepdims=True) - LIMITS.window
        needed = np.maximum(LIMITS.least_reach, 2.0 * np.where(seen, away, 0.0).max(axis=1))
        rays, distance = (a.reshape(size, -1, len(OCTAVES)) for a in (g, away))
        # Far out g is rounding error alone: its last two reliable values tell whether it rises.
        exact = np.abs(np.nan_to_num(rays, nan=np.inf)) < LIMITS.largest
        defined = np.cumprod(exact, axis=2).sum(axis=2)
        last = np.maximum(defined - 1, 1)[:, :, None]
        ahead, behind = (
            np.take_along_axis(rays, last - shift, axis=2)[:, :, 0] for shift in (0, 1)
        )
        inside = self._scan_inside.reshape(rays.shape)[:, :, -1]
        grows = inside & (np.diff(distance, axis=2)[:, :, -1] > 0)
        rises = grows & (defined > 1) & (ahead > behind)
        rises |= grows & np.isposinf(rays).any(axis=2)
        return np.where(rises.any(axis=1), np.inf, needed)

    def _extend(self, needed: Array) -> None:
        """Restart samples whose cells do not reach far enough with larger first cells."""
        short = np.flatnonzero(needed > self._reach)
        if not len(short):
            return
        least = LIMITS.least_reach
        self._reach[short] = least * 4.0 ** np.ceil(np.log(needed[short] / least) / np.log(4.0))
        roots = [self._region.roots(int(self.samples[i]), self._reach[i]) for i in short]
        position = np.repeat(short, [len(part) for part in roots])
        self._replace(np.isin(self.position, short), position, np.concatenate(roots))

    def _replace(self, cut: Array, position: Array, cells: Array) -> None:
        """Put new cells, of samples at these positions, in the place of those marked in `cut`."""
        points, jacobian = node_positions(cells, self._mesh)
        flat = (points * self._deviation).reshape(-1, self._region.dimension)
        data = self._integrand.evaluate_points(
            np.repeat(self.samples[position], self._rule.size), flat
        )
        data = tuple(p.reshape(len(cells), self._rule.size, *p.shape[1:]) for p in data)
        undefined = np.any(np.isnan(data[0]), axis=1)
        data = self._defined(data)
        holes = np.any(np.isneginf(data[0]), axis=1)
        order = np.argsort(np.concatenate([self.position[~cut], position]), kind="stable")

        def merged(old: Array, new: Array) -> Array:
            return np.concatenate([old[~cut], new])[order]

        self._cells = merged(self._cells, cells)
        self._jacobian = merged(self._jacobian, jacobian)
        self._holes = merged(self._holes, holes)
        self._undefined = merged(self._undefined, undefined)
        self.node_data = tuple(merged(*pair) for pair in zip(self.node_data, data))
        self.position = merged(self.position, position)
        self._last = None

    @staticmethod
    def _defined(data: tuple[Array, ...]) -> tuple[Array, ...]:
        """The numbers with -inf for NaN: a scenario without a loss has no weight."""
        return (np.where(np.isnan(data[0]), -np.inf, data[0]), *data[1:])


class Normal:
    """The standard normal density as an integrand: g = -|t|^2/2."""

    def evaluate_points(self, owners: Array, moves: Array) -> tuple[Array, ...]:
        return (-0.5 * (moves**2).sum(axis=1),)

    def exponents(self, data: tuple[Array, ...], owners: Array, dual: float) -> Array:
        return data[0]


def normal_log_masses(region: CellRegion) -> Array:
    """The log of the mass that N(0, I) gives to the region of each sample, (N,)."""
    if not len(region.normals):
        finite = np.isfinite(region.low) | np.isfinite(region.high)
        masses = np.zeros(finite.shape)
        if finite.any():
            masses[finite] = truncated_normal(region.low[finite], region.high[finite]).log_mass
        return masses.sum(axis=1)
    everyone, unit = np.arange(len(region.low)), np.ones(region.dimension)
    integral = CellIntegral(Normal(), region, unit, everyone, LIMITS.reference_error)
    return integral.evaluate(0.0).log_mass - region.dimension * HALF_LOG_2PI


# ------------------------------
# Tensor Gauss-Kronrod rules on a unit cell


@dataclass(frozen=True)
class CellRule:
    """A rule with n points along each of r axes."""

    dimension: int
    nodes: Array
    """On [0, 1], (n,)."""
    weights: Array
    """Of the higher rule, (n,)."""
    excess: Array
    """Weights of the higher rule minus those of the embedded one, (n,)."""
    between: Array
    """Interpolation matrix from the nodes to nodes, midpoints between them and ends, (m, n)."""
    last: Array
    """Matrix from values at the nodes to the last two Legendre coefficients, (2, n)."""

    @property
    def size(self) -> int:
        """Nodes of a cell."""
        return len(self.nodes) ** self.dimension

    def mesh(self) -> list[Array]:
        """The coordinates of all nodes on the unit cell, r arrays (size,)."""
        mesh = np.meshgrid(*[self.nodes] * self.dimension, indexing="ij")
        return [axis.ravel() for axis in mesh]

    def product_weights(self) -> Array:
        """The weights of all nodes, (size,)."""
        one = self.weights
        return one if self.dimension == 1 else np.outer(one, one).ravel()

    def integrate(self, density: Array) -> tuple[Array, Array]:
        """Integrals (C,) of densities given at the nodes (C, size), and errors by axis (C, r)."""
        n = len(self.nodes)
        if self.dimension == 1:
            return density @ self.weights, np.abs(density @ self.excess)[:, None]
        both = np.stack([self.weights, self.excess], axis=1)
        inner = (density.reshape(-1, n) @ both).reshape(-1, n, 2)
        across = density.reshape(-1, n, n).transpose(0, 2, 1).reshape(-1, n) @ self.excess
        first = np.abs(across).reshape(-1, n) @ self.weights
        second = np.abs(inner[:, :, 1]) @ self.weights
        return inner[:, :, 0] @ self.weights, np.stack([first, second], axis=1)

    def bound(self, logs: Array) -> Array:
        """Upper estimates (C,) of interpolated functions, from values at the nodes (C, size)."""
        n, m = len(self.nodes), len(self.between)
        both = np.concatenate([self.between, self.last]).T
        lines = logs.reshape(-1, n) @ both
        finer, slack = lines[:, :m], np.abs(lines[:, m:]).sum(axis=1)
        if self.dimension == 1:
            return (
                finer.max(axis=1)
                + _parabola_excess(finer, finer.argmax(axis=1))
                + LIMITS.caution * slack
            )
        slack = slack.reshape(-1, n).max(axis=1)
        across = finer.reshape(-1, n, m).transpose(0, 2, 1).reshape(-1, n) @ both
        slack += np.abs(across[:, m:]).sum(axis=1).reshape(-1, m).max(axis=1)
        plane = across[:, :m].reshape(-1, m, m)  # second axis, first axis
        flat = plane.reshape(-1, m * m)
        second, first = np.divmod(flat.argmax(axis=1), m)
        cell = np.arange(len(plane))
        peak = _parabola_excess(plane[cell, second], first) + _parabola_excess(
            plane[cell, :, first], second
        )
        return flat[cell, second * m + first] + peak + LIMITS.caution * slack

    def ranges(self, logs: Array) -> Array:
        """The largest range of values along a line of nodes, for each cell and axis, (C, r)."""
        n = len(self.nodes)
        cube = logs.reshape(-1, *[n] * self.dimension)
        parts = [np.ptp(cube, axis=1 + i) for i in range(self.dimension)]
        lines = n ** (self.dimension - 1)
        return np.stack([part.reshape(len(logs), lines).max(axis=1) for part in parts], axis=1)


def _parabola_excess(lines: Array, top: Array) -> Array:
    """A bound on the excess of a parabola over the highest of its three points, for each line."""
    row, last = np.arange(len(lines)), lines.shape[1] - 1
    inner = (top > 0) & (top < last)
    top = np.clip(top, 1, last - 1)
    bend = np.abs(lines[row, top - 1] - 2 * lines[row, top] + lines[row, top + 1])
    return np.where(inner, 0.25 * bend, 0.0)


@cache
def cell_rule(dimension: int) -> CellRule:
    """The rule for cells of one or two dimensions."""
    count = GAUSS_POINTS[dimension]
    gauss, low = legendre.leggauss(count)
    nodes = np.sort(np.concatenate([gauss, stieltjes_roots(count)]))
    # The weights integrate the first n Legendre polynomials: only the constant has an integral.
    n = len(nodes)
    moments = np.zeros(n)
    moments[0] = 2.0
    vander = legendre.legvander(nodes, n - 1)
    high = np.linalg.solve(vander.T, moments)
    excess = high.copy()
    excess[1::2] -= low
    ends = np.sort(np.concatenate([[-1.0, 1.0], nodes, 0.5 * (nodes[1:] + nodes[:-1])]))
    coefficients = np.linalg.inv(vander)
    between = legendre.legvander(ends, n - 1) @ coefficients
    return CellRule(
        dimension, 0.5 * (nodes + 1), 0.5 * high, 0.5 * excess, between, coefficients[-2:]
    )


def stieltjes_roots(count: int) -> Array:
    """The points that Kronrod adds to a Gauss rule: the roots of E with P_n E orthogonal to all
    polynomials of degree up to n."""
    points, weights = legendre.leggauss(2 * count + 2)
    own = weights * legendre.legval(points, np.eye(count + 1)[-1])
    powers = legendre.legvander(points, count + 1)
    # sum_j e_j <P_n P_j P_i> = 0 for i <= n, with e_(n+1) = 1.
    gram = powers[:, : count + 1].T @ (own[:, None] * powers)
    coefficients = np.linalg.lstsq(gram[:, :-1], -gram[:, -1], rcond=None)[0]
    return np.sort(legendre.legroots(np.append(coefficients, 1.0)).real)
