"""Tensor Gauss-Kronrod rules on a unit cell, and what their nodes say about the rest of the cell.

The higher rule minus the embedded Gauss rule, line by line along each axis, estimates the error and
tells the axis that causes it. A density exp(g) may be much narrower than the nodes are apart: g
itself is then interpolated between them, up to the corners, and its last Legendre coefficients say
how far that can be trusted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.polynomial import legendre

from wdro_model.solvers.objective import Array

GAUSS_POINTS = {1: 7, 2: 4}
"""Points of the embedded rule in one and in two dimensions."""
CAUTION = 2.0
"""How many times their last coefficients interpolated functions may be off."""


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
    """Values at the nodes, between them and at the ends, from those at the nodes, (m, n)."""
    last: Array
    """The last two Legendre coefficients, (2, n)."""

    @property
    def size(self) -> int:
        """Nodes of a cell."""
        return len(self.nodes) ** self.dimension

    def mesh(self) -> list[Array]:
        """The coordinates of all nodes on the unit cell, r arrays (size,)."""
        mesh = np.meshgrid(*[self.nodes] * self.dimension, indexing="ij")
        return [axis.ravel() for axis in mesh]

    def product_weights(self) -> Array:
        """Those of all nodes, (size,)."""
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

    def highest(self, logs: Array) -> Array:
        """How high functions, given at the nodes (C, size), may be within their cells, (C,)."""
        n, m = len(self.nodes), len(self.between)
        both = np.concatenate([self.between, self.last]).T
        lines = logs.reshape(-1, n) @ both
        finer, slack = lines[:, :m], np.abs(lines[:, m:]).sum(axis=1)
        if self.dimension == 1:
            return finer.max(axis=1) + _peak(finer, finer.argmax(axis=1)) + CAUTION * slack
        slack = slack.reshape(-1, n).max(axis=1)
        across = finer.reshape(-1, n, m).transpose(0, 2, 1).reshape(-1, n) @ both
        slack += np.abs(across[:, m:]).sum(axis=1).reshape(-1, m).max(axis=1)
        plane = across[:, :m].reshape(-1, m, m)  # second axis, first axis
        flat = plane.reshape(-1, m * m)
        second, first = np.divmod(flat.argmax(axis=1), m)
        cell = np.arange(len(plane))
        peak = _peak(plane[cell, second], first) + _peak(plane[cell, :, first], second)
        return flat[cell, second * m + first] + peak + CAUTION * slack

    def ranges(self, logs: Array) -> Array:
        """How much functions vary along lines in each axis, (C, r)."""
        n = len(self.nodes)
        cube = logs.reshape(-1, *[n] * self.dimension)
        parts = [np.ptp(cube, axis=1 + i) for i in range(self.dimension)]
        lines = n ** (self.dimension - 1)
        return np.stack([part.reshape(len(logs), lines).max(axis=1) for part in parts], axis=1)


def _peak(lines: Array, at: Array) -> Array:
    """How much higher parabolas through the highest points of lines and their neighbours may be."""
    row, last = np.arange(len(lines)), lines.shape[1] - 1
    inner = (at > 0) & (at < last)
    at = np.clip(at, 1, last - 1)
    bend = np.abs(lines[row, at - 1] - 2 * lines[row, at] + lines[row, at + 1])
    return np.where(inner, 0.25 * bend, 0.0)


@cache
def cell_rule(dimension: int) -> CellRule:
    """The rule for cells of one or two dimensions."""
    count = GAUSS_POINTS[dimension]
    gauss, low = legendre.leggauss(count)
    nodes = np.sort(np.concatenate([gauss, stieltjes_roots(count)]))
    # Exact for all polynomials up to the number of nodes; the rest follows from their place.
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
    found = np.linalg.lstsq(gram[:, :-1], -gram[:, -1], rcond=None)[0]
    return np.sort(legendre.legroots(np.append(found, 1.0)).real)
