"""The sparse matrices of an affine atom, as CVXPY itself builds them."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from wdro_model.loss import atoms
from wdro_model.loss.rules import missing_rule


def linear_maps(atom: Any) -> list[Any]:
    """Sparse matrices M_k with vec(atom) = sum_k vec(argument_k) M_k, vec in column-major order.

    A constant factor of a product is part of the matrix of the other one; its own entry is None.
    """
    fixed = isinstance(atom, atoms.BILINEAR)
    arguments = [
        a if fixed and isinstance(a, cp.Constant) else cp.Variable(a.shape) for a in atom.args
    ]
    values = [a.value if isinstance(a, cp.Constant) else np.zeros(a.shape) for a in arguments]
    try:
        maps = atom.copy(arguments)._grad(values)
    except Exception as error:
        # CVXPY raises what it likes here: a refusal of two variables, a missing graph, an assert.
        reason = str(error) or type(error).__name__
        raise missing_rule(atom, f", and CVXPY gives no matrix for it ({reason})") from error
    return [
        None if isinstance(a, cp.Constant) else _as_matrix(m, a.size, atom.size)
        for a, m in zip(arguments, maps)
    ]


def _as_matrix(m: Any, rows: int, columns: int) -> Any:
    if sp.issparse(m):
        return sp.csr_array(m)
    return sp.csr_array(np.reshape(np.asarray(m, dtype=float), (rows, columns)))
