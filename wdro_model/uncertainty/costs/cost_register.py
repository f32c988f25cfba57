"""The register of costs by name: built in, added by a user, or offered by another package.

    @wdro.costs.register_cost("group")
    class GroupNorm(wdro.costs.GroundCost): ...

    wdro.WassersteinBall(1.0, cost="group")

Another package offers a cost by an entry point in the group `wdro_model.costs`:

    [project.entry-points."wdro_model.costs"]
    group = "my_package.costs:GroupNorm"
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from wdro_model.registry import Register, refuse_signature
from wdro_model.uncertainty.costs.ground_cost import BoundCost, GroundCost, class_knows
from wdro_model.uncertainty.costs.ground_cost import Callable as FunctionCost
from wdro_model.uncertainty.costs.norm_costs import Mahalanobis, Norm, SquaredEuclidean

PURPOSES: dict[str, str] = {
    "gradient": "lower bounds on the worst-case risk by ascent, and faster smoothing",
    "dual_norm": "exact counterparts on R^d (with is_norm or is_quadratic)",
    "dual_norms": "the same as numbers; worked out from dual_norm, slowly, if missing",
    "steepest_move": "worst-case distributions, and first-order methods on exact counterparts",
    "combined": "sums of many terms on coordinates of their own, in one norm",
    "restricted": "moves of some coordinates alone",
    "coordinate_weights": "boxes (with is_separable)",
    "conjugate": "bounded supports (with is_conic)",
    "perspective": "worst-case distributions on bounded supports (with is_conic)",
    "inverse_times": "affine and max-affine losses (with is_quadratic); worked out from matrix",
    "whitened": "max-affine losses (with is_quadratic)",
    "matrix": "smoothing of affine losses (with is_quadratic); worked out if missing, slowly",
    "rounded": "smoothing of costs with kinks",
    "quadratic_model": "smoothing with fewer calls of the cost",
    "default_sigma": "a closed form of the default sigma; found by draws if missing",
}
"""Operations of a bound cost by name, each with its purpose."""

Declared = TypeVar("Declared", bound=type[GroundCost])


def _check_class(name: str, declared: Any) -> type[GroundCost]:
    """The class, checked to be a complete class of costs."""
    if not isinstance(declared, type) or not issubclass(declared, GroundCost):
        raise ValueError(
            f"the cost {name!r} must be a subclass of wdro_model.costs.GroundCost, got "
            f"{declared!r}."
        )
    missing = sorted(declared.__abstractmethods__)
    missing += [a for a in ("order", "bound") if not hasattr(declared, a)]
    bound = getattr(declared, "bound", None)
    if bound is not None:
        if not isinstance(bound, type) or not issubclass(bound, BoundCost):
            raise ValueError(
                f"bound of the cost {name!r} must be a subclass of wdro_model.costs.BoundCost, got "
                f"{bound!r}."
            )
        missing += [f"{bound.__name__}.{a}" for a in sorted(bound.__abstractmethods__)]
        if not class_knows(bound, "of_displacements") and not class_knows(bound, "__call__"):
            missing.append(f"{bound.__name__}.of_displacements")
    refuse_signature(f"bind of the cost {name!r}", getattr(declared, "bind", None), "self", "joint")
    if missing:
        raise ValueError(
            f"the cost {name!r} cannot be registered: {declared.__name__} lacks "
            f"{', '.join(missing)}; see wdro_model.costs.register_cost."
        )
    return declared


COSTS: Register[type[GroundCost]] = Register("cost", "wdro_model.costs", _check_class)
"""Classes of ground costs by name."""
for _name, _cost in (("squared", SquaredEuclidean), ("mahalanobis", Mahalanobis), ("norm", Norm)):
    COSTS.add(_name, _cost)


def register_cost(name: str, *, replace: bool = False) -> Callable[[Declared], Declared]:
    """A decorator that registers a class of ground costs under a name.

    The class has `bind`, `describe`, `order` and `bound`, the class of the costs that `bind`
    returns. The class `bound` has `describe` and `of_displacements` (or `__call__`), and any of
    the operations that `operations` lists. A name that is taken needs `replace=True`.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> class BoundBottleneck(wdro.costs.BoundNorm):
    ...     def describe(self):
    ...         return "the largest move"
    >>> @wdro.costs.register_cost("bottleneck")
    ... @dataclass(frozen=True)
    ... class Bottleneck(wdro.costs.GroundCost):
    ...     order, bound = 1.0, BoundBottleneck
    ...     def bind(self, joint):
    ...         return BoundBottleneck(joint.dimension, p=np.inf)
    ...     def describe(self):
    ...         return "the largest move"
    >>> wdro.WassersteinBall(0.1, "bottleneck").describe()
    'W_c <= 0.1 with c(xi, zeta) = the largest move (1-Wasserstein distance <= 0.1)'
    """
    return COSTS.decorator(name, replace)


def cost_names() -> tuple[str, ...]:
    """The names of costs: registered ones first, then those of packages.

    Examples
    --------
    >>> "norm" in wdro.costs.cost_names()
    True
    """
    return COSTS.names()


def find_cost(name: str) -> type[GroundCost]:
    """The class of the cost `name`; a package that offers it is imported now.

    Examples
    --------
    >>> wdro.costs.find_cost("norm").__name__
    'Norm'
    """
    return COSTS[name]


@dataclass(frozen=True)
class Operation:
    """An operation that a bound cost may know.

    Examples
    --------
    >>> known = {op.name: op.known for op in wdro.costs.operations(wdro.costs.Norm)}
    >>> known["dual_norm"], known["inverse_times"]
    (True, False)
    """

    name: str
    purpose: str
    known: bool

    def __str__(self) -> str:
        return f"{'knows' if self.known else 'lacks'} {self.name}: {self.purpose}"


def operations(declared: type[GroundCost] | type[BoundCost]) -> tuple[Operation, ...]:
    """The operations of a class of costs: their purposes, and whether the class has them.

    Examples
    --------
    >>> for operation in wdro.costs.operations(wdro.costs.Callable)[:2]:
    ...     print(operation.known, operation.name, "->", operation.purpose)
    False gradient -> lower bounds on the worst-case risk by ascent, and faster smoothing
    False dual_norm -> exact counterparts on R^d (with is_norm or is_quadratic)
    """
    bound: type = getattr(declared, "bound", declared)
    return tuple(
        Operation(name, purpose, class_knows(bound, name)) for name, purpose in PURPOSES.items()
    )


def as_cost(given: Any) -> GroundCost:
    """A ground cost from an argument cost=: a cost, its name, a function, None for the default.

    Examples
    --------
    >>> wdro.costs.as_cost(None), wdro.costs.as_cost("norm")
    (SquaredEuclidean(weights=None), Norm(p=2.0, weights=None))
    """
    if given is None:
        return SquaredEuclidean()
    if isinstance(given, GroundCost):
        return given
    if isinstance(given, type) and issubclass(given, GroundCost):
        raise ValueError(f"cost is the class {given.__name__}; write {given.__name__}().")
    if isinstance(given, BoundCost) or (isinstance(given, type) and issubclass(given, BoundCost)):
        name = given.__name__ if isinstance(given, type) else type(given).__name__
        raise ValueError(
            f"cost is {name}, a BoundCost; pass the ground cost, not what it binds to: the one "
            "whose bind(joint) returns it."
        )
    if isinstance(given, str):
        declared = find_cost(given)
        try:
            return declared()
        except TypeError as error:
            raise ValueError(
                f"the cost {given!r} needs arguments ({error}); pass cost={declared.__name__}(...)."
            ) from error
    if callable(given):
        return FunctionCost(given)
    raise ValueError(
        f"cost must be one of wdro_model.costs (SquaredEuclidean, Mahalanobis, Norm), the name of "
        f"one, or a function of (origins, points), got {given!r}."
    )
