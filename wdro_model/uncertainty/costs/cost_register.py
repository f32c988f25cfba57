"""The costs by name: built in, registered, or shipped by a package.

    @wdro.costs.register_cost("group")
    class GroupNorm(wdro.costs.GroundCost): ...

    wdro.WassersteinBall(1.0, cost="group")

Another package offers one by an entry point in the group `wdro_model.costs`:

    [project.entry-points."wdro_model.costs"]
    group = "my_package.costs:GroupNorm"
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any, TypeVar

from wdro_model.errors import unknown_name
from wdro_model.uncertainty.costs.bound_cost import BoundCost, class_knows
from wdro_model.uncertainty.costs.ground_cost import GroundCost
from wdro_model.uncertainty.costs.mahalanobis import Mahalanobis
from wdro_model.uncertainty.costs.norm import Norm
from wdro_model.uncertainty.costs.squared import SquaredEuclidean
from wdro_model.uncertainty.costs.user_cost import Callable as FunctionCost

ENTRY_POINT_GROUP = "wdro_model.costs"

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
    "inverse_times": "affine and max-affine losses (with is_quadratic)",
    "whitened": "max-affine losses (with is_quadratic)",
    "matrix": "smoothing of affine losses in closed form (with is_quadratic)",
    "rounded": "smoothing of costs with kinks",
    "quadratic_model": "smoothing with fewer calls of the cost",
    "default_sigma": "a closed form of the default sigma; found by draws if missing",
}
"""What a bound cost may know, and what for."""

_registered: dict[str, type[GroundCost]] = {
    "squared": SquaredEuclidean,
    "mahalanobis": Mahalanobis,
    "norm": Norm,
}

Declared = TypeVar("Declared", bound=type[GroundCost])


def register_cost(name: str, *, replace: bool = False) -> Callable[[Declared], Declared]:
    """A decorator that offers a class of ground costs under a name.

    The class has `bind`, `describe`, `order` and, as `bound`, the class of the costs that it binds
    to; that one has `describe` and `of_displacements` (or `__call__`), and may know what
    `operations` lists. A name that is taken is refused unless `replace` is true.
    """
    if not isinstance(name, str) or not name:
        raise ValueError(f"the name of a cost must be a non-empty string, got {name!r}.")

    def register(declared: Declared) -> Declared:
        _check(name, declared)
        if name in _registered and _registered[name] is not declared and not replace:
            raise ValueError(
                f"there is a cost {name!r} already, {_registered[name].__name__}; choose another "
                "name or pass replace=True."
            )
        _registered[name] = declared
        return declared

    return register


def cost_names() -> tuple[str, ...]:
    """The names of costs: registered ones first, then those of packages."""
    return tuple(dict.fromkeys([*_registered, *_packaged()]))


def find_cost(name: str) -> type[GroundCost]:
    """The cost called `name`; a package that offers it is imported now, not before."""
    if name in _registered:
        return _registered[name]
    packaged = _packaged()
    if name not in packaged:
        raise ValueError(unknown_name("cost", name, cost_names()))
    entry = packaged[name]
    try:
        declared = entry.load()
    except Exception as error:
        raise ValueError(
            f"the cost {name!r} could not be loaded from {entry.value!r}: {error}"
        ) from error
    return register_cost(name)(declared)


@dataclass(frozen=True)
class Operation:
    """Something that a bound cost may know."""

    name: str
    purpose: str
    known: bool

    def __str__(self) -> str:
        return f"{'knows' if self.known else 'lacks'} {self.name}: {self.purpose}"


def operations(declared: type[GroundCost] | type[BoundCost]) -> tuple[Operation, ...]:
    """What the costs of a class know and lack, and what each operation is for."""
    bound: type = getattr(declared, "bound", declared)
    return tuple(
        Operation(name, purpose, class_knows(bound, name)) for name, purpose in PURPOSES.items()
    )


def as_cost(given: Any) -> GroundCost:
    """A ground cost from what the user wrote: a cost, its name, a function, None (default)."""
    if given is None:
        return SquaredEuclidean()
    if isinstance(given, GroundCost):
        return given
    if isinstance(given, type) and issubclass(given, GroundCost):
        raise ValueError(f"cost is the class {given.__name__}; write {given.__name__}().")
    if isinstance(given, str):
        return _by_name(given)
    if callable(given):
        return FunctionCost(given)
    raise ValueError(
        f"cost must be one of wdro_model.costs (SquaredEuclidean, Mahalanobis, Norm), the name of "
        f"one, or a function of (origins, points), got {given!r}."
    )


def _by_name(name: str) -> GroundCost:
    declared = find_cost(name)
    try:
        return declared()
    except TypeError as error:
        raise ValueError(
            f"the cost {name!r} needs arguments ({error}); pass cost={declared.__name__}(...)."
        ) from error


def _check(name: str, declared: Any) -> None:
    """A ValueError that names what a class of costs lacks."""
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
    if missing:
        raise ValueError(
            f"the cost {name!r} cannot be registered: {declared.__name__} lacks "
            f"{', '.join(missing)}; see wdro_model.costs.register_cost."
        )


def _packaged() -> dict[str, metadata.EntryPoint]:
    """Entry points by the name of the cost; nothing is imported."""
    return {entry.name: entry for entry in metadata.entry_points(group=ENTRY_POINT_GROUP)}
