"""The user's own CP-SAT model as a feasible set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import cvxpy as cp
import numpy as np
from numpy.typing import ArrayLike

from wdro_model import checks
from wdro_model.errors import InfeasibleError
from wdro_model.sets.arguments import as_direction
from wdro_model.sets.backends import (
    Answer,
    BoundedOracle,
    Side,
    Vector,
    rounding_slack,
    scaled_to_integers,
)
from wdro_model.sets.feasible_set import BoundedSet
from wdro_model.sets.rounding import is_whole

LARGEST_OBJECTIVE = 2**50
"""Largest objective value that is written: bounds are reported as floating-point numbers."""


class CpSat(BoundedSet):
    """The values that some variables of an OR-Tools CP-SAT model take in its solutions.

    Costs are scaled to whole numbers. `minimize_with_slack` tells how far an answer may be from the
    minimum: the error of the scaling, and what the solver has left open at its time limit.

    Parameters
    ----------
    model
        A `cp_model.CpModel`; the set has a copy, as it is now, without its objective.
    variables
        Boolean and integer variables of it, in a list or in a dict by name: one for each
        coordinate.
    time_limit
        Seconds for a call; the best solution so far is returned, with its bound.
    workers
        Threads of the solver; with one, and no time limit, answers can be repeated.

    Attributes
    ----------
    names
        The keys of the dict, or the variables' own names where they are all different.

    Examples
    --------
    >>> from ortools.sat.python import cp_model
    >>> model = cp_model.CpModel()
    >>> shifts = {name: model.new_bool_var(name) for name in ("early", "late", "night")}
    >>> rule = model.add_exactly_one(shifts["early"], shifts["late"])
    >>> rule = model.add_implication(shifts["late"], shifts["night"])
    >>> rota = wdro.sets.CpSat(model, shifts)
    >>> rota.selected(rota.minimize([3.0, 1.0, 1.0]))
    ['late', 'night']
    """

    rounds = True

    def __init__(
        self, model: Any, variables: Any, time_limit: float | None = None, workers: int = 1
    ) -> None:
        if not hasattr(model, "clone") or not hasattr(model, "minimize"):
            raise ValueError(
                f"CpSat takes an OR-Tools cp_model.CpModel first, got {type(model).__name__}."
            )
        given = _as_variables(variables)
        self.time_limit = time_limit
        if time_limit is not None:
            self.time_limit = checks.number("time_limit", time_limit, low=0, open=True)
        self.workers = checks.whole_number("workers", workers, low=1)
        self._indices = [_index(variable, model) for variable in given.values()]
        self.names = _names(given)
        self.dimension = len(self._indices)
        self._text = _without_objective(model)
        domains = [list(model.proto.variables[i].domain) for i in self._indices]
        lower, upper = (np.array([float(d[side]) for d in domains]) for side in (0, -1))
        self.bounds = (lower, upper)
        largest = float(np.maximum(np.abs(lower), np.abs(upper)).sum())
        if largest > LARGEST_OBJECTIVE / 1024:
            raise ValueError(
                f"the variables of {self!r} reach {largest:.3g} in sum, which leaves no room for "
                "costs; give them smaller domains."
            )
        self._limit = int(LARGEST_OBJECTIVE / max(largest, 1.0))
        self._model = _from_text(self._text)

    def selected(self, x: ArrayLike, threshold: float = 0.5) -> list[Any]:
        """The names of the variables whose value exceeds the threshold."""
        values = as_direction(x, self.dimension, kind="x")
        return [self.names[i] for i in np.flatnonzero(values > threshold)]

    def values(self, x: ArrayLike) -> dict[Any, float]:
        """The value of each variable, by its name.

        Examples
        --------
        >>> from ortools.sat.python import cp_model
        >>> model = cp_model.CpModel()
        >>> pieces = {name: model.new_int_var(0, 3, name) for name in ("long", "short")}
        >>> rule = model.add(2 * pieces["long"] + pieces["short"] >= 5)
        >>> cuts = wdro.sets.CpSat(model, pieces)
        >>> cuts.values(cuts.minimize([3.0, 1.0]))
        {'long': 1.0, 'short': 3.0}
        """
        return dict(zip(self.names, as_direction(x, self.dimension, kind="x").tolist()))

    def check_nonempty(self) -> None:
        """Raise InfeasibleError if the model has no solution."""
        self.minimize(np.zeros(self.dimension))

    def describe(self) -> str:
        return f"{self.dimension} variables of a CP-SAT model, minimised by OR-Tools"

    def __repr__(self) -> str:
        return f"CpSat({self.dimension} variables)"

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_model": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._model = _from_text(self._text)

    def is_vertex(self, x: ArrayLike) -> bool:
        return is_whole(as_direction(x, self.dimension, kind="x"))

    def answer(self, direction: Vector, lower: Side, upper: Side) -> Answer:
        """The best solution that was found, bounds added to a copy of the model, and its slack."""
        from ortools.sat.python import cp_model

        integers, unit = scaled_to_integers(direction, self._limit)
        model = self._model.clone()
        variables = [model.get_int_var_from_proto_index(i) for i in self._indices]
        model.minimize(cp_model.LinearExpr.weighted_sum(variables, integers.tolist()))
        (low, high), (least, most) = self.interval(lower, upper), self.interval(None, None)
        for i in np.flatnonzero((low > least) | (high < most)):
            model.add_linear_constraint(
                variables[i], int(np.ceil(low[i] - 1e-9)), int(np.floor(high[i] + 1e-9))
            )
        solver = cp_model.CpSolver()
        solver.parameters.num_workers, solver.parameters.random_seed = self.workers, 0
        if self.time_limit is not None:
            solver.parameters.max_time_in_seconds = self.time_limit
        status = solver.solve(model)
        if status == cp_model.INFEASIBLE:
            raise InfeasibleError(f"the model of {self!r} has no solution within the bounds.")
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            raise cp.error.SolverError(
                f"CP-SAT stopped with {solver.status_name(status)} on {self!r}, with no solution "
                f"so far (time_limit={self.time_limit}); give it more time, or mend the model: "
                f"{self._model.validate() or 'it is valid'}."
            )
        solution = [solver.value(variable) for variable in variables]
        cost = sum(int(k) * value for k, value in zip(integers, solution))
        left = 0.0 if status == cp_model.OPTIMAL else max(cost - solver.best_objective_bound, 0.0)
        slack = unit * left + rounding_slack(direction, integers, unit, high - low)
        return np.array(solution, dtype=np.float64), slack


class CpSatOracle(BoundedOracle):
    """A CP-SAT model of the points of another set, as the backend of that set.

    time_limit: seconds for a call, once a point is known.
    """

    def __init__(
        self, feasible: BoundedSet, model: Any, variables: Any, time_limit: float | None = None
    ) -> None:
        self._set, self._time_limit = feasible, time_limit
        self._solutions = CpSat(model, variables)
        self._known: Vector | None = None

    def reset(self) -> None:
        """Forget the last point."""
        self._known, self._solutions.time_limit = None, None

    def answer(self, direction: Vector, lower: Vector, upper: Vector) -> Answer:
        """The best point found in time, or the last one where that is better."""
        known = self._known
        if known is not None and (np.any(known < lower) or np.any(known > upper)):
            known = None
        self._solutions.time_limit = None if known is None else self._time_limit
        try:
            point, slack = self._solutions.answer(direction, lower, upper)
        except InfeasibleError:
            raise self._set.refusal(lower, upper) from None
        except cp.error.SolverError:
            if known is None:
                raise
            least = float(np.minimum(direction * lower, direction * upper).sum())
            point, slack = known, float(direction @ known) - least
        gain = 0.0 if known is None else float(direction @ (point - known))
        if known is not None and gain > 0.0:
            point, slack = known, max(slack - gain, 0.0)
        self._known = point.copy()
        return point.copy(), slack


def _as_variables(variables: Any) -> dict[Any, Any]:
    """The variables by name, or by position."""
    if isinstance(variables, Mapping):
        given = dict(variables)
    elif isinstance(variables, Iterable):
        given = dict(enumerate(variables))
    else:
        raise ValueError(
            f"CpSat takes a list or a dict of the model's variables, got {variables!r}."
        )
    if not given:
        raise ValueError("CpSat needs at least one variable of the model, got none.")
    return given


def _index(variable: Any, model: Any) -> int:
    """The variable's place in the model."""
    index = getattr(variable, "index", None)
    count = len(model.proto.variables)
    if not isinstance(index, int) or not 0 <= index < count or not hasattr(variable, "proto"):
        raise ValueError(
            f"CpSat takes variables of its model, got {variable!r}; for an expression, add a "
            "variable to the model that equals it."
        )
    if str(variable.proto) != str(model.proto.variables[index]):
        raise ValueError(f"{variable!r} is a variable of another model.")
    return index


def _names(given: dict[Any, Any]) -> tuple[Any, ...]:
    own = [variable.name for variable in given.values()]
    numbered = list(given) == list(range(len(own)))
    return tuple(own) if numbered and all(own) and len({*own}) == len(own) else tuple(given)


def _without_objective(model: Any) -> str:
    copy = model.clone()
    copy.clear_objective()
    return str(copy.proto)


def _from_text(text: str) -> Any:
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    model.proto.parse_text_format(text)
    return model
