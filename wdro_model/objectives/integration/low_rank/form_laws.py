"""The tilted law of t in the cases that need no sampling: h quadratic, or t of rank at most two.

density proportional to exp(h(u_k + L t)/eps - |t|^2/2),   t in R^r.
"""

from __future__ import annotations

import numpy as np

from wdro_model.objectives.integration.low_rank.gaussian_law import gaussian_law
from wdro_model.objectives.integration.low_rank.outer import Outer
from wdro_model.objectives.integration.low_rank.piecewise import integrate_pieces
from wdro_model.objectives.integration.low_rank.plane import along, piece_plane_law, plane_law
from wdro_model.objectives.integration.low_rank.quadrature import integrate_lines
from wdro_model.objectives.integration.low_rank.tilted_law import TiltedLaw
from wdro_model.solvers.objective import Array


def exact_law(outer: Outer, u: Array, L: Array) -> TiltedLaw | None:
    """The tilted law for forms u (K, q) moved by L (K or 1, q, r); None if it must be sampled."""
    rank = L.shape[-1]
    if rank == 0:
        return point_law(outer, u)
    if outer.quadratic:
        return gaussian_law(outer, u, L)
    if rank > 2:
        return None
    if outer.pieces is not None:
        values, slopes = outer.lines(u)
        b = slopes @ L
        return piece_law(values, b) if rank == 1 else piece_plane_law(values, b)
    return line_law(outer, u, L[..., 0]) if rank == 1 else plane_law(outer, u, L)


def point_law(outer: Outer, u: Array) -> TiltedLaw:
    """Nothing moves."""
    owner = np.arange(len(u))
    return TiltedLaw(outer(owner, u), owner, np.zeros((len(u), 0)), np.ones(len(u)))


def piece_law(a: Array, b: Array) -> TiltedLaw:
    """A maximum of lines a_p + b_p t: a (K, P), b (K or 1, P, 1)."""
    found = integrate_pieces(a, b[..., 0])
    return TiltedLaw(
        found.log_mass, found.owner, found.mean[:, None], found.weights, found.variance
    )


def line_law(outer: Outer, u: Array, direction: Array) -> TiltedLaw:
    """Any h along one direction (K or 1, q)."""
    found = integrate_lines(along(outer, u, direction), len(u), curvature=outer.curvature)
    return TiltedLaw(found.log_mass, found.owner, found.nodes[:, None], found.weights)
