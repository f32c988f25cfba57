"""The support of the joint data as linear inequalities, where it is a polyhedron."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from wdro_model.model import RobustModel
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.supports import Polyhedron

Inequalities = tuple[Any, Array]
"""C (m, d) sparse and h (m,), for {C xi <= h}."""


def inequalities(model: RobustModel) -> Inequalities | None:
    """C and h with the support {C xi <= h}; None if it is not polyhedral.

    Rows that see only coordinates held fixed are left out: the samples meet them already.
    """
    return model.remember("inequalities of the support", lambda: _inequalities(model))


def polyhedron(model: RobustModel) -> Inequalities:
    """The same for a model of which it is known that its support is polyhedral."""
    found = inequalities(model)
    assert found is not None
    return found


def _inequalities(model: RobustModel) -> Inequalities | None:
    blocks, limits = [], []
    for parameter in model.joint.parameters:
        found = _of_support(parameter.support, parameter.shape)
        if found is None:
            if model.cost.frozen[model.joint.slices[parameter]].all():
                found = sp.csr_array((0, parameter.size)), np.zeros(0)
            else:
                return None
        blocks.append(found[0])
        limits.append(found[1])
    matrix = sp.csr_array(sp.block_diag(blocks, format="csr"))
    acts = np.asarray(abs(matrix[:, np.flatnonzero(~model.cost.frozen)]).sum(axis=1)).ravel() > 0
    return matrix[np.flatnonzero(acts)], np.concatenate(limits)[acts]


def _of_support(support: Any, shape: tuple[int, ...]) -> Inequalities | None:
    size = int(np.prod(shape))
    if isinstance(support, Polyhedron):
        rows = sp.csr_array(support.A)
        lengths = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
        scale = 1.0 / np.where(lengths > 0, lengths, 1.0)  # rows of length one, in any unit
        return sp.csr_array(sp.diags_array(scale) @ rows), scale * np.asarray(support.b)
    box = support.bounds(shape)
    if box is None:
        return None
    lower, upper = (np.ravel(side) for side in box)
    identity = sp.eye_array(size, format="csr")
    below, above = np.flatnonzero(np.isfinite(lower)), np.flatnonzero(np.isfinite(upper))
    rows = sp.vstack([-identity[below], identity[above]], format="csr")
    return rows, np.concatenate([-lower[below], upper[above]])
