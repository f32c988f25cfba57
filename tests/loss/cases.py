"""Losses that together use every rule, with points and scenarios inside their domains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from wdro_model.loss import quadratic_form
from wdro_model.uncertainty.parameter import UncertainParameter

N = 4
x = cp.Variable(N, name="x")
Y = cp.Variable((2, N), name="Y")
t = cp.Variable(name="t")
xi = UncertainParameter(N, name="xi")
Xi = UncertainParameter((N, N), name="Xi")
S = UncertainParameter((N, N), name="S", symmetric=True)
s = UncertainParameter(name="s")
column = UncertainParameter((N, 1), name="column")
T = UncertainParameter((2, 3, N), name="T")
Z = cp.Variable((2, 3, N), name="Z")
certain = cp.Parameter(N, name="certain", value=np.array([0.3, -1.2, 0.8, 2.0]))
rate = cp.Parameter(name="rate", nonneg=True, value=0.7)

_rng = np.random.default_rng(20)
A = _rng.normal(size=(3, N))
SPARSE = cp.Constant(sp.csc_array(A * (A > 0)))
P = _rng.normal(size=(N, N))

rows = cp.vstack([xi, 2 * xi - 1])
xy = cp.multiply(x, xi)
grid = cp.multiply(Y, rows)
cube = cp.multiply(T, Z)


@dataclass(frozen=True)
class Case:
    """A loss.

    positive_data: draw scalar data above 1.5.
    at_zero: is it differentiable at x = 0?
    convex: is it convex in x for the scenarios that are drawn?
    """

    name: str
    expression: Any
    positive_data: bool = False
    at_zero: bool = True
    convex: bool = False


def _cases() -> list[Case]:
    smooth = {
        "dot": x @ xi,
        "dot reversed": xi @ x,
        "matrix times vector": cp.sum(Xi @ x),
        "vector times matrix": cp.sum(x @ Xi),
        "bilinear": (x @ Xi) @ xi,
        "uncertain matrix, uncertain vector": (Xi @ xi) @ x,
        "certain matrix, uncertain vector": (A @ xi) @ (A @ x),
        "matrix products": cp.sum(Y @ Xi),
        "matrix products both uncertain": cp.trace((Xi @ S) @ cp.diag(x)),
        "matrix products certain right": cp.sum(cp.square(Xi @ A.T)) * t,
        "row times column": cp.sum(cp.reshape(x, (1, N), order="C") @ column),
        "transposed matrix": cp.sum(cp.multiply(Xi.T @ x, np.arange(N))),
        "sparse constant": (SPARSE @ xi) @ (SPARSE @ x),
        "three factors": (A @ Xi @ x) @ np.ones(3),
        "quad_form symmetric": cp.quad_form(x, S),
        "quad_form certain": cp.quad_form(x - xi, np.eye(N) + 1.0),
        "quadratic_form": quadratic_form(x, Xi),
        "quadratic_form of an affine map": quadratic_form(A.T @ (A @ x) - 1, Xi),
        "quadratic_form of data": quadratic_form(x - xi, Xi),
        "quadratic_form certain, indefinite": quadratic_form(x - xi, P),
        "quadratic_form scaled matrix": quadratic_form(x, 2 * Xi + P),
        "sum of squares": cp.sum_squares(x - xi),
        "scalar times vector": cp.sum(s * x),
        "scalar plus vector": cp.sum_squares(x + s),
        "quotient by data": cp.sum(x / cp.exp(s)),
        "quotient by decision": s / cp.exp(t) + cp.sum(xi / cp.exp(x)),
        "certain parameter": certain @ x + rate * (x @ xi),
        "expression of certain parameters": cp.exp(rate) * (x @ xi) + cp.sum(certain),
        "entry": x[1] * xi[2] + xi[0],
        "slice": x[1:3] @ xi[:2],
        "reversed": x[::-1] @ xi,
        "stride": cp.sum(x[::2]) * xi[-1],
        "list index": x[[0, 2]] @ xi[[1, 3]],
        "repeated index": cp.sum_squares(x[[0, 0, 2]] + xi[[1, 3, 3]]),
        "mask": cp.sum_squares(xi[np.array([True, False, True, True])] - x[1:]),
        "matrix index": cp.sum(cp.square(Xi[1:3, ::-1])) * t + Xi[0, 1] * x[0],
        "matrix list index": cp.sum(Xi[[0, 1], [2, 3]]) * t,
        "new axis": cp.sum(cp.multiply(Y, xi[None, :])),
        "hstack": cp.sum_squares(cp.hstack([x, xi]) - 1),
        "hstack scalars": cp.sum_squares(cp.hstack([s, t, 2.0])),
        "vstack": cp.sum(cp.square(cp.vstack([x, xi]))),
        "bmat": cp.sum_squares(cp.bmat([[Xi, Xi.T]]) @ cp.hstack([x, x])),
        "concatenate": cp.sum_squares(cp.concatenate([Y, grid], axis=0)),
        "reshape F": cp.sum_squares(
            cp.reshape(x, (2, 2), order="F") - cp.reshape(xi, (2, 2), order="F").T
        ),
        "reshape C": cp.sum_squares(
            cp.reshape(x, (2, 2), order="C") @ cp.reshape(xi, (2, 2), order="C")
        ),
        "vec": cp.vec(Xi, order="F") @ np.arange(N * N) * t,
        "flatten grid": cp.vec(grid, order="C") @ np.arange(2 * N),
        "trace": cp.trace(Xi @ cp.diag(x)),
        "diagonal": cp.diag(Xi) @ x,
        "upper triangle": cp.sum(cp.upper_tri(Xi)) * t,
        "kron certain left": cp.sum(
            cp.kron(np.array([[1.0, 2.0]]), cp.reshape(xi, (2, 2), order="F")) @ x
        ),
        "kron certain right": cp.sum_squares(cp.kron(cp.diag(xi), np.array([[1.0], [3.0]])) @ x),
        "kron data and decision": cp.sum(cp.kron(cp.reshape(xi, (2, 2), order="F"), Y)),
        "convolution": cp.sum_squares(cp.convolve(np.array([1.0, -1.0]), xy)),
        "convolution with data": cp.sum_squares(cp.convolve(xi, x)),
        "cumulative sum": cp.sum(cp.multiply(cp.cumsum(x), xi)),
        "cumulative sum along rows": cp.sum_squares(cp.cumsum(grid, axis=1)),
        "differences": cp.sum_squares(cp.diff(xy)),
        "outer": cp.sum(cp.square(cp.outer(x, xi))),
        "broadcast": cp.sum_squares(cp.broadcast_to(xi, (2, N)) - Y),
        "broadcast column": cp.sum_squares(Y - cp.sum(grid, axis=1, keepdims=True)),
        "sum along columns": cp.sum(cp.multiply(cp.sum(Y, axis=0), xi)),
        "sum along rows": cp.sum_squares(cp.sum(grid, axis=1)),
        "sum keeping axes": cp.sum_squares(cp.sum(grid, axis=0, keepdims=True)),
        "sum of squares along an axis": cp.sum_squares(grid + 1, axis=0) @ A[0] + t,
        "mean": cp.mean(xy),
        "mean along an axis": cp.sum_squares(cp.mean(grid, axis=0)),
        "variance": cp.var(xy + x),
        "exp": cp.sum(cp.exp(xy)),
        "log": cp.sum(cp.log(cp.exp(x) + cp.exp(xi))),
        "log1p": cp.sum(cp.log1p(cp.exp(xy))),
        "entropy": cp.sum(cp.entr(cp.exp(xy))),
        "xexp": cp.sum(cp.xexp(xy)),
        "logistic": cp.logistic(-s * (x @ xi)),
        "square": cp.square(s - x @ xi),
        "sqrt": cp.sum(cp.sqrt(cp.exp(x) + s * s)),
        "inverse": cp.sum(cp.inv_pos(cp.exp(xy))),
        "cube": cp.sum(cp.power(x, 3)) * s,
        "fifth power": cp.sum(cp.power(xy + x, 5)),
        "power 0": cp.sum(cp.power(x, 0)) * s + t,
        "power 1": cp.sum(cp.power(x, 1)) * s,
        "power 2.5": cp.sum(cp.power(cp.exp(xy), 2.5)),
        "power -1.5": cp.sum(cp.power(cp.exp(xy), -1.5)),
        "uncertain exponent": cp.sum(cp.power(cp.exp(x), s)),
        "uncertain exponent and base": cp.sum(cp.power(cp.exp(xy), s)),
        "parameter exponent": cp.sum(cp.power(cp.exp(xy), rate)),
        "relative entropy": cp.sum(cp.rel_entr(cp.exp(x), cp.exp(xi))),
        "kl divergence": cp.sum(cp.kl_div(cp.exp(xi), cp.exp(x))),
        "log_sum_exp": cp.log_sum_exp(xy),
        "log_sum_exp along an axis": cp.sum_squares(cp.log_sum_exp(grid, axis=1)),
        "log_sum_exp keeping axes": cp.sum(cp.log_sum_exp(grid, axis=0, keepdims=True)) * s,
        "geometric mean": cp.geo_mean(cp.exp(xy)),
        "weighted geometric mean": cp.geo_mean(cp.exp(xy), [1, 0, 2, 1]) + t,
        "harmonic mean": cp.harmonic_mean(cp.exp(xy)),
        "quad_over_lin by decision": cp.quad_over_lin(x - xi, cp.exp(t)),
        "quad_over_lin by data": cp.quad_over_lin(x - xi, cp.exp(s)),
        "quad_over_lin along an axis": cp.sum_squares(
            cp.quad_over_lin(grid + 1, cp.exp(s + t), axis=1)
        ),
        "huber": cp.sum(cp.huber(xy + 0.3, 0.4)),
        "sine": cp.sum(cp.nlp.sin(xy)) + cp.sum(cp.nlp.tanh(x)) * s,
        "one parameter twice": (x @ xi) * (xi @ np.ones(N)) + cp.sum_squares(xi) * t,
        "one subexpression twice": cp.square(x @ xi) + cp.exp(x @ xi),
        "no data": cp.sum_squares(x - 1) + t,
        "no decision": cp.sum_squares(xi) + 0 * t,
        "one entry, shape (1, 1)": cp.reshape(x @ xi, (1, 1), order="C"),
        "a parameter alone": s + 0 * t,
        "inner product": cp.vdot(x, xi),
        "einsum": cp.einsum("ijk,ijk->", T, Z),
        "einsum, matrix of dots": cp.sum_squares(cp.einsum("ijk,k->ij", T, x)),
        "stacked along a new axis": cp.sum_squares(cp.stack([x, xi])),
        "swapped axes": cp.sum_squares(cp.swapaxes(cube, 0, 2)[1]),
        "sum along two axes": cp.sum_squares(cp.sum(cube, axis=(0, 2))),
        "sum along two axes, kept": cp.sum_squares(cp.sum(cube, axis=(0, 1), keepdims=True)),
        "index of three axes": cp.sum_squares(cube[:, 1, ::2]),
        "log_sum_exp along two axes": cp.sum(cp.log_sum_exp(cube, axis=(0, 2))),
        "quad_over_lin along two axes": cp.sum(cp.quad_over_lin(cube, cp.exp(s), axis=(0, 2))),
        "geometric mean along an axis": cp.sum(cp.geo_mean(cp.exp(cube), [1, 2, 0], axis=1)),
        "partial trace": cp.sum(cp.partial_trace(cp.outer(xi, x), (2, 2), 0) @ [1.0, 2.0]),
        "base to the power of data": cp.sum(3 ** cp.multiply(x, xi)),
        "logarithm of the normal cdf": cp.sum(cp.log_normcdf(xy)),
        "wrapped": cp.quad_form(x, cp.psd_wrap(S)),
    }
    kinked = {
        "maximum": cp.sum(cp.maximum(x, xi, 0.3)),
        "maximum of a scalar and a vector": cp.sum(cp.maximum(s, x)),
        "minimum": cp.sum(cp.minimum(x, xi)),
        "minimum of three": cp.sum(cp.minimum(xi, x + 0.1, s)),
        "abs": cp.abs(t - x @ xi - 0.1),
        "pos": cp.pos(x @ xi - t + 0.1),
        "neg": cp.sum(cp.neg(x - xi)),
        "cvar": t + 5 * cp.pos(-x @ xi - t + 0.1),
        "max": cp.max(xy + certain),
        "max along an axis": cp.sum(cp.multiply(cp.max(grid + A[:2], axis=1), [1.0, -2.0])),
        "max keeping axes": cp.sum_squares(cp.max(grid + A[:2], axis=0, keepdims=True)),
        "min": cp.min(xy + certain),
        "min along an axis": cp.sum(cp.min(grid + A[:2], axis=0)),
        "norm 1": cp.norm1(x - xi),
        "norm 2": cp.norm(x - xi),
        "norm inf": cp.norm_inf(x - xi),
        "norm 3": cp.norm(x - xi, 3),
        "norm 1.5": cp.norm(x - xi, 1.5),
        "matrix norms": cp.norm(grid - A[:2], 1)
        + cp.norm(grid - A[:2], "inf")
        + cp.norm(grid - 1, "fro"),
        "norm 1 along an axis": cp.sum_squares(cp.norm1(grid - 1, axis=1)),
        "norm 2 along an axis": cp.sum(cp.norm(grid - 1, 2, axis=1)),
        "norm 2 keeping axes": cp.sum_squares(cp.norm(grid - 1, 2, axis=0, keepdims=True)),
        "norm inf along an axis": cp.sum(cp.norm_inf(grid - A[:2], axis=0)),
        "mixed norm": cp.mixed_norm(grid - 1, 2, 1),
        "total variation": cp.tv(xy + certain),
        "total variation of a matrix": cp.tv(Xi + cp.outer(x, x)),
        "standard deviation": cp.std(xy + certain),
        "standard deviation along an axis": cp.sum(cp.std(grid + A[:2], axis=1)),
        "sum of largest": cp.sum_largest(xy + certain, 2),
        "sum of largest, fractional": cp.sum_largest(xy + certain, 2.5),
        "sum of largest along an axis": cp.sum(cp.sum_largest(grid + A[:2], 3, axis=1)),
        "sum of smallest": cp.sum_smallest(xy + certain, 2),
        "max along two axes": cp.sum(cp.max(cube + np.arange(24).reshape(2, 3, 4), axis=(0, 2))),
        "conditional value at risk": cp.cvar(xy + certain, 0.5),
        "scalene": cp.sum(cp.scalene(x - xi, 2, 3)),
        "range": cp.ptp(xy + certain),
    }
    at_boundary = {
        "entropy at zero": cp.sum(cp.entr(x)),
        "square root at zero": cp.sum(cp.sqrt(x)),
    }
    positive_exponent = {"uncertain exponent", "uncertain exponent and base"}
    # Convex on the nonnegative numbers alone; convex if the data were semidefinite.
    outside = {"fifth power", "cube", "wrapped"}
    return [
        Case(
            name,
            expression,
            positive_data=name in positive_exponent,
            at_zero=name not in at_boundary,
            convex=expression.is_convex() and name not in outside,
        )
        for name, expression in (smooth | kinked | at_boundary).items()
    ]


CASES = _cases()
