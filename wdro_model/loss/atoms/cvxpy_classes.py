"""CVXPY's atom classes, taken from its public constructors.

Class names change between CVXPY versions, and some atoms became functions. The constructors stay:
each class here is the type of what a constructor returns. `family` goes from a variant
(PowerApprox) to the class that declares the atom (Power), so that one rule serves all variants.
"""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.atoms.atom import Atom
from cvxpy.atoms.axis_atom import AxisAtom
from cvxpy.atoms.elementwise.elementwise import Elementwise

BASES = {Atom, AffAtom, AxisAtom, Elementwise}


def family(expression: Any) -> Any:
    """The class that declares the atom: the nearest one under CVXPY's abstract bases."""
    return next(cls for cls in type(expression).__mro__ if BASES & set(cls.__bases__))


_scalar, _vector, _matrix = cp.Variable(), cp.Variable(2), cp.Variable((2, 2))

ADD = type(_vector + _vector)
NEGATE = type(-_vector)
MULTIPLY = type(cp.multiply(_vector, _vector))
MATMUL = type(_matrix @ _matrix)
DIVIDE = type(_vector / 2)
WRAP = family(cp.psd_wrap(_matrix))
PROMOTE = type((_vector + _scalar).args[1])
BROADCAST = type(cp.broadcast_to(_vector, (2, 2)))
SUM = type(cp.sum(_vector))
INDEX = type(_vector[0:1])
SPECIAL_INDEX = type(_vector[[0, 1]])
RESHAPE = type(cp.reshape(_vector, (1, 2), order="C"))
TRANSPOSE = type(_matrix.T)
HSTACK = type(cp.hstack([_vector, _vector]))
VSTACK = type(cp.vstack([_vector, _vector]))
CONCATENATE = type(cp.concatenate([_vector, _vector]))
KRON = type(cp.kron(np.eye(1), _matrix))
CONVOLVE = type(cp.convolve(np.ones(1), _vector))

ABS = family(cp.abs(_vector))
ENTR = family(cp.entr(_vector))
EXP = family(cp.exp(_vector))
HUBER = family(cp.huber(_vector))
KL_DIV = family(cp.kl_div(_vector, _vector))
LOG = family(cp.log(_vector))
LOG1P = type(cp.log1p(_vector))
LOGISTIC = family(cp.logistic(_vector))
MAXIMUM = family(cp.maximum(_vector, 0))
MINIMUM = family(cp.minimum(_vector, 0))
POWER = family(cp.power(_vector, 3))
REL_ENTR = family(cp.rel_entr(_vector, _vector))
XEXP = family(cp.xexp(_vector))

_SMOOTH_NAMES = ("sin", "cos", "tan", "sinh", "tanh", "asinh", "atanh", "normcdf")
SMOOTH_CLASSES = {
    name: family(getattr(cp.nlp, name)(_vector))
    for name in _SMOOTH_NAMES
    if hasattr(cp, "nlp") and hasattr(cp.nlp, name)
}
"""CVXPY's smooth atoms that are neither convex nor concave, where the version has them."""

GEO_MEAN = family(cp.geo_mean(_vector))
LOG_SUM_EXP = family(cp.log_sum_exp(_vector))
MAX = family(cp.max(_vector))
MIN = family(cp.min(_vector))
NORM1 = family(cp.norm1(_vector))
NORM_INF = family(cp.norm_inf(_vector))
PNORM = family(cp.norm(_vector, 3))
QUAD_FORM = family(cp.quad_form(_vector, np.eye(2)))
QUAD_OVER_LIN = family(cp.quad_over_lin(_vector, 1))
SUM_LARGEST = family(cp.sum_largest(_vector, 1))

CONVOLUTIONS: tuple[Any, ...] = tuple(
    {cls for cls in (CONVOLVE, getattr(cp, "conv", CONVOLVE)) if isinstance(cls, type)}
)
"""The convolution and, where CVXPY still has it, its deprecated spelling."""

BILINEAR: tuple[Any, ...] = (MATMUL, MULTIPLY, KRON, *CONVOLUTIONS)
"""Atoms that CVXPY calls affine and that are linear in each of their two arguments."""
