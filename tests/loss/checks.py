"""Independent computations: CVXPY's own value of one scenario at a time, and finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np

STEP = 1e-6


def scenario_values(expression: Any, point: dict[Any, Any], data: dict[Any, Any]) -> np.ndarray:
    """f(x, xi_b) for each scenario, as CVXPY evaluates it."""
    size = len(next(iter(data.values()))) if data else 1
    values = []
    for variable, value in point.items():
        variable.save_value(np.asarray(value, dtype=float))
    for b in range(size):
        for parameter, rows in data.items():
            parameter.save_value(rows[b])
        values.append(np.asarray(expression.value, dtype=float).item())
    for parameter in data:
        parameter.save_value(None)
    return np.array(values)


def gradient_in_decision(
    expression: Any, point: dict[Any, Any], data: dict[Any, Any], weights: np.ndarray
) -> dict[Any, np.ndarray]:
    """Central differences of weights @ values."""
    found = {}
    for variable in point:
        gradient = np.zeros(variable.shape)
        for index in np.ndindex(variable.shape):
            up, down = ({v: np.array(a, dtype=float) for v, a in point.items()} for _ in range(2))
            up[variable][index] += STEP
            down[variable][index] -= STEP
            difference = scenario_values(expression, up, data) - scenario_values(
                expression, down, data
            )
            gradient[index] = weights @ difference / (2 * STEP)
        found[variable] = gradient
    return found


def gradient_in_data(
    expression: Any, point: dict[Any, Any], data: dict[Any, Any], weights: np.ndarray
) -> dict[Any, np.ndarray]:
    """Central differences of each scenario's value, one entry moved in all scenarios at once."""
    found = {}
    for parameter in data:
        gradient = np.zeros(data[parameter].shape)
        for index in np.ndindex(parameter.shape):
            up, down = ({p: np.array(a) for p, a in data.items()} for _ in range(2))
            up[parameter][(slice(None), *index)] += STEP
            down[parameter][(slice(None), *index)] -= STEP
            difference = scenario_values(expression, point, up) - scenario_values(
                expression, point, down
            )
            gradient[(slice(None), *index)] = weights * difference / (2 * STEP)
        found[parameter] = gradient
    return found


def draw_data(
    parameters: Any, size: int, rng: np.random.Generator, positive: bool = False
) -> dict[Any, np.ndarray]:
    """Scenarios that respect the attributes of their parameters."""
    data = {}
    for parameter in parameters:
        rows = rng.normal(size=(size, *parameter.shape))
        if positive and parameter.shape == ():
            rows = np.abs(rows) + 1.5
        if parameter.attributes["symmetric"]:
            rows = rows + np.swapaxes(rows, 1, 2)
        data[parameter] = rows
    return data
