"""Quadratic forms x' P x for any square matrix P, and the base class of the library's own atoms.

Reading uncertain matrices from memory takes most of the time: the value reads each of them once
(P x, which is stored), the gradient in x once more (P' x), the gradient in the data never.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from wdro_model.loss.atoms.cvxpy_classes import QUAD_FORM, Atom
from wdro_model.loss.atoms.facts import (
    Adjoints,
    AtomFacts,
    Kernel,
    Operands,
    declare,
    facts_of,
)
from wdro_model.loss.expressions import outer, weighted
from wdro_model.uncertainty.parameter import UncertainParameter


class StructuredAtom(Atom):
    """An atom of this library, with curvature for CVXPY and facts for the library.

    CVXPY cannot solve for it. Its fact `rebuild` may return an expression of CVXPY's own atoms
    where the new arguments allow it.

    Examples
    --------
    >>> x, costs = cp.Variable(2), wdro.UncertainParameter((2, 2))
    >>> isinstance(wdro.quadratic_form(x, costs), wdro.loss.StructuredAtom)
    True
    """

    def copy(self, args: Any = None, id_objects: Any = None) -> Any:
        """CVXPY's copy, with other arguments through the fact `rebuild`."""
        if id_objects is not None and id(self) in id_objects:
            return id_objects[id(self)]
        return facts_of(self).rebuild(self, self.args if args is None else args)


@declare(StructuredAtom)
class Structured(AtomFacts):
    """Atoms of this library: the constructor builds them from other arguments."""

    def rebuild(self, atom: Any, reads: Sequence[Any]) -> Any:
        return type(atom)(*reads, *(atom.get_data() or ()))


# ------------------------------------------------------------------ quadratic forms


def quadratic_form(x: Any, P: Any) -> Any:
    """The expression x' P x = sum_ij P_ij x_i x_j.

    A certain P whose symmetric part is semidefinite gives CVXPY's own `quad_form`, so that conic
    solvers can handle it. Otherwise the expression is convex if P is declared PSD.

    Parameters
    ----------
    x
        A vector, m entries, affine in the variables (and the data).
    P
        (m, m) array, `cvxpy.Parameter`, `UncertainParameter`, or an expression of them; P need not
        be symmetric.

    Examples
    --------
    >>> x = cp.Variable(2)
    >>> costs = wdro.UncertainParameter((2, 2), samples=[[[2.0, 1.0], [0.0, 2.0]]])
    >>> loss = wdro.quadratic_form(x, costs)                  # not symmetric
    >>> problem = wdro.Problem(cp.Minimize(loss), [cp.sum(x) == 1, x >= 0], assume_convex=True)
    >>> print(f"{problem.solve():.3f}")
    1.250
    """
    x, P = cp.Constant.cast_to_const(x), cp.Constant.cast_to_const(P)
    if P.ndim != 2 or P.shape[0] != P.shape[1]:
        raise ValueError(f"quadratic_form needs a square matrix, got P of shape {P.shape}.")
    m = P.shape[0]
    if x.shape not in ((m,), (m, 1)):
        raise ValueError(
            f"quadratic_form(x, P) needs x of shape ({m},) for P of shape {P.shape}, "
            f"got x of shape {x.shape}; x = cp.Variable({m}) fits."
        )
    if x.is_complex() or P.is_complex():
        raise ValueError("quadratic_form takes real arguments, got a complex one.")
    x = cp.reshape(x, (m,), order="C") if x.ndim == 2 else x
    if x.is_constant() or not P.is_constant():
        return QuadraticForm(x, P)
    if any(isinstance(p, UncertainParameter) for p in P.parameters()):
        return QuadraticForm(x, P)
    symmetric = P
    if not P.parameters():
        dense = P.value.toarray() if sp.issparse(P.value) else np.asarray(P.value, dtype=float)
        symmetric = cp.Constant((dense + dense.T) / 2)
    if symmetric.is_hermitian() and (symmetric.is_psd() or symmetric.is_nsd()):
        return cp.quad_form(x, symmetric)
    return QuadraticForm(x, P)


class QuadraticForm(StructuredAtom):
    """The atom x' P x; build it with `quadratic_form`."""

    def numeric(self, values: Any) -> Any:
        x, P = values
        return np.asarray(x @ (P @ x))

    def shape_from_args(self) -> tuple[int, ...]:
        return ()

    def sign_from_args(self) -> tuple[bool, bool]:
        x, P = self.args
        one_sign = x.is_nonneg() or x.is_nonpos()
        return (
            P.is_psd() or (one_sign and P.is_nonneg()),
            P.is_nsd() or (one_sign and P.is_nonpos()),
        )

    def is_atom_convex(self) -> bool:
        """True for a P that is known to be PSD: the atom is then convex in x."""
        return bool(self.args[1].is_constant() and self.args[1].is_psd())

    def is_atom_concave(self) -> bool:
        return bool(self.args[1].is_constant() and self.args[1].is_nsd())

    def is_atom_smooth(self) -> bool:
        return True

    def is_incr(self, idx: int) -> bool:
        x, P = self.args
        if idx == 1:
            return bool(x.is_nonneg() or x.is_nonpos())
        return bool((x.is_nonneg() and P.is_nonneg()) or (x.is_nonpos() and P.is_nonpos()))

    def is_decr(self, idx: int) -> bool:
        x, P = self.args
        opposite = (x.is_nonneg() and P.is_nonpos()) or (x.is_nonpos() and P.is_nonneg())
        return idx == 0 and bool(opposite)

    def is_quadratic(self) -> bool:
        return bool(self.args[0].is_affine() and self.args[1].is_constant())

    def has_quadratic_term(self) -> bool:
        return True

    def is_pwl(self) -> bool:
        return False

    def _grad(self, values: Any) -> list[Any]:
        x, P = (np.asarray(v, dtype=float) for v in values)
        in_x, in_matrix = (P + P.T) @ x, np.outer(x, x)
        return [
            sp.csc_array(in_x.reshape(-1, 1)),
            sp.csc_array(in_matrix.reshape((-1, 1), order="F")),
        ]


@declare(QuadraticForm, QUAD_FORM)
class QuadraticFacts(AtomFacts):
    """The facts of our quadratic form and of CVXPY's."""

    def degree(self, atom: Any, degrees: Sequence[float]) -> float:
        return 2 * degrees[0] + degrees[1]

    def adjoints(self, atom: Any) -> Adjoints:
        """x x' in P; no adjoint in x, in which the degree is two."""
        x = atom.args[0]
        return [lambda g: AtomFacts.adjoints(self, atom), lambda g: weighted(g, outer(x, x))]

    def constant_part(self, atom: Any, parts: Sequence[Any | None]) -> Any | None:
        return None if any(part is None for part in parts) else quadratic_form(*parts)

    def rebuild(self, atom: Any, reads: Sequence[Any]) -> Any:
        return quadratic_form(*reads)

    def kernel(self, _atom: Any, operands: Operands) -> Kernel:
        x, P = operands
        if not P.batched:
            form = _certain_matrix
        elif x.batched:
            form = _both_batched
        else:
            form = _uncertain_matrix
        if x.ndim == 1:
            return form

        def column(x: Any, P: Any) -> tuple[Any, ...]:
            """The form of a column x (m, 1), which CVXPY's quad_form takes too."""
            y, in_x, in_matrix = form(x[..., 0], P)
            return y, lambda g: in_x(g)[..., None], in_matrix

        return column


def _certain_matrix(x: Any, P: Any) -> tuple[Any, ...]:
    """x of shape (m,) or (B, m); P of shape (m, m)."""
    Px = x @ P.T
    value = np.vecdot(Px, x)

    def in_x(g: Any) -> Any:
        return np.asarray(g)[..., None] * (Px + x @ P)

    def in_matrix(g: Any) -> Any:
        return x.T @ (g[:, None] * x) if x.ndim == 2 else g * np.multiply.outer(x, x)

    return value, in_x, in_matrix


def _uncertain_matrix(x: Any, P: Any) -> tuple[Any, ...]:
    """x of shape (m,); P of shape (B, m, m), which value and gradients read at most twice."""
    batch, m, _ = P.shape
    Px = (P.reshape(-1, m) @ x).reshape(batch, m) if P.flags.c_contiguous else P @ x

    def in_x(g: Any) -> Any:
        return g @ Px + g @ (x @ P)

    def in_matrix(g: Any) -> Any:
        return g[:, None, None] * np.multiply.outer(x, x)

    return Px @ x, in_x, in_matrix


def _both_batched(x: Any, P: Any) -> tuple[Any, ...]:
    """x of shape (B, m); P of shape (B, m, m)."""
    Px = (P @ x[..., None])[..., 0]

    def in_x(g: Any) -> Any:
        return g[:, None] * (Px + (x[:, None, :] @ P)[:, 0])

    def in_matrix(g: Any) -> Any:
        return (g[:, None] * x)[:, :, None] * x[:, None, :]

    return np.vecdot(Px, x), in_x, in_matrix
