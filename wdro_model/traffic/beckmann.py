"""Costs of traffic on congested arcs, as CVXPY expressions of the flows.

The travel time of an arc with flow x is t (1 + alpha (x/c)^beta) (Bureau of Public Roads). Its
integral is what the drivers' equilibrium minimises (Beckmann), its product with the flow what all
drivers spend together.
"""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from wdro_model.traffic.bpr import link_costs
from wdro_model.traffic.fields import NONNEGATIVE, POSITIVE, check_rule
from wdro_model.uncertainty.parameter import UncertainParameter


def beckmann(x: Any, capacity: Any, time: Any, alpha: Any, beta: Any) -> Any:
    """Beckmann's objective, the integrals of the travel times from 0 to the flows:

        sum_a  t_a ( x_a + alpha_a c_a/(beta_a + 1) (x_a/c_a)^(beta_a + 1) ).

    Flows below zero have no congestion, so that the expression is convex in x on all of R^A as soon
    as the signs of time, alpha and beta are known: of an uncertain parameter they are when its
    support is nonnegative. With exponents that are numbers it consists of CVXPY's own atoms, and
    is affine in time, and in alpha.

    Parameters
    ----------
    x
        Flows, shape (A,), an affine expression of the variables.
    capacity
        c > 0, one number or (A,); an array or a `cvxpy.Parameter` with a value.
    time, alpha, beta
        Free-flow times t >= 0, multiplier >= 0 and exponent >= 0. Each is one number for all arcs
        or (A,): an array, a `cvxpy.Parameter`, an `UncertainParameter` or an affine expression of
        them, in any mixture.

    Examples
    --------
    >>> x = cp.Variable(network.n_arcs, nonneg=True)
    >>> times = wdro.UncertainParameter(network.n_arcs, "times", nonneg=True)
    >>> loss = wdro.traffic.beckmann(x, network.capacity, times, network.b, network.power)
    >>> loss.is_convex(), wdro.loss.degree(loss, [times])
    (True, 1.0)
    """
    return link_costs(*_checked("beckmann", x, capacity, time, alpha, beta), integrated=True)


def system_cost(x: Any, capacity: Any, time: Any, alpha: Any, beta: Any) -> Any:
    """The time that all drivers spend together: sum_a t_a x_a (1 + alpha_a (x_a/c_a)^beta_a).

    Its minimiser is the system optimum, where that of `beckmann` is the equilibrium. Arguments,
    convexity and structure are the same.

    Examples
    --------
    >>> x = cp.Variable(network.n_arcs, nonneg=True)
    >>> cost = wdro.traffic.system_cost(
    ...     x, network.capacity, network.free_flow_time, network.b, network.power
    ... )
    >>> cost.is_convex()
    True
    """
    return link_costs(*_checked("system_cost", x, capacity, time, alpha, beta), integrated=False)


# ------------------------------------------------------------------ checks
def _checked(what: str, x: Any, capacity: Any, *data: Any) -> list[Any]:
    """The arguments as CVXPY expressions."""
    flows = _as_expression(what, "x", x)
    if flows.ndim != 1:
        raise ValueError(
            f"{what} needs flows x of shape (A,), one entry per arc, got shape {flows.shape}; "
            "x = cp.Variable(A) fits."
        )
    names = ("capacity", "time", "alpha", "beta")
    arguments = [_as_expression(what, n, a) for n, a in zip(names, (capacity, *data))]
    for name, argument in zip(names, arguments):
        _check_shape(what, name, argument, flows.size)
        _check_constant(what, name, argument)
        _check_values(what, name, argument)
    return [flows, *arguments]


def _as_expression(what: str, name: str, given: Any) -> Any:
    if isinstance(given, str) or given is None:
        raise ValueError(f"{name} of {what} must be numbers or an expression, got {given!r}.")
    try:
        expression = cp.Constant.cast_to_const(given)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} of {what} must be numbers or an expression, got {type(given).__name__}."
        ) from error
    if expression.is_complex():
        raise ValueError(f"{name} of {what} must be real, got complex numbers.")
    return expression


def _check_shape(what: str, name: str, argument: Any, arcs: int) -> None:
    if argument.shape not in ((), (arcs,)):
        raise ValueError(
            f"{name} of {what} must be one number or have shape ({arcs},), one entry for each "
            f"entry of x, got shape {argument.shape}."
        )


def _check_constant(what: str, name: str, argument: Any) -> None:
    if not argument.is_constant():
        variables = ", ".join(repr(v.name()) for v in argument.variables())
        raise ValueError(
            f"{name} of {what} must not depend on decision variables, got one that depends on "
            f"{variables}; only the flows x may."
        )
    if name != "capacity":
        return
    uncertain = [p.name() for p in argument.parameters() if isinstance(p, UncertainParameter)]
    if uncertain:
        raise ValueError(
            f"capacity of {what} must be certain, got the uncertain parameter {uncertain[0]!r}; "
            "let alpha carry the uncertainty: alpha * (x/c)^beta, as in the exact losses of "
            "traffic.UncertainNetwork(network, capacity=scenarios)."
        )
    if argument.value is None:
        raise ValueError(
            f"capacity of {what} needs a value, and its parameter has none; set .value first."
        )


def _check_values(what: str, name: str, argument: Any) -> None:
    """Refuse numbers that are known now and cannot be right."""
    if any(isinstance(p, UncertainParameter) for p in argument.parameters()):
        return
    value = argument.value
    if value is None:
        return
    values = value.toarray() if sp.issparse(value) else np.asarray(value, float)
    rule = POSITIVE if name == "capacity" else NONNEGATIVE
    check_rule(f"{name} of {what}", values, rule, lambda *index: f" at arc {index[0]}")
