"""Rules of quadratic forms x' P x, for P symmetric or not.

Uncertain matrices make up most of the memory that a loss reads: the value reads each of them once
(P x, kept), the gradient in x once more (P' x), the gradient in the data not at all.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wdro_model.loss import atoms
from wdro_model.loss.quadratic_form import QuadraticForm
from wdro_model.loss.rules import Kernel, Operand, rule


@rule(QuadraticForm, atoms.QUAD_FORM, prepared=True)
def _(_atom: Any, operands: tuple[Operand, ...]) -> Kernel:
    x, P = operands
    if not P.batched:
        kernel = _certain_matrix
    elif x.batched:
        kernel = _both_batched
    else:
        kernel = _uncertain_matrix
    if x.ndim == 1:
        return kernel

    def column(x: Any, P: Any) -> tuple[Any, ...]:
        """CVXPY's quad_form also takes x as a column (m, 1)."""
        y, in_x, in_matrix = kernel(x[..., 0], P)
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
    """x of shape (m,); P of shape (B, m, m): two passes over the matrices at most."""
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
