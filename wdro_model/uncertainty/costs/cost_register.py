"""The costs by name (built in, registered, or shipped by a package), and what is asked of them.

    @wdro.costs.register_cost("group")
    class GroupNorm(wdro.costs.GroundCost): ...

    wdro.WassersteinBall(1.0, cost="group")

Another package offers one by an entry point in the group `wdro_model.costs`:

    [project.entry-points."wdro_model.costs"]
    group = "my_package.costs:GroupNorm"
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import isfunction
from typing import Any, TypeVar

import cvxpy as cp
import numpy as np

from wdro_model.registry import Register, refuse_signature
from wdro_model.uncertainty.costs.ground_cost import Array, BoundCost, GroundCost, class_knows
from wdro_model.uncertainty.costs.norm import Norm
from wdro_model.uncertainty.costs.squared import Mahalanobis, SquaredEuclidean
from wdro_model.uncertainty.costs.user_cost import Callable as FunctionCost

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
"""What a bound cost may know, and what for."""

Declared = TypeVar("Declared", bound=type[GroundCost])


def _check_class(name: str, declared: Any) -> type[GroundCost]:
    """The class itself; a ValueError that names what a class of costs lacks."""
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
    """A decorator that offers a class of ground costs under a name.

    The class has `bind`, `describe`, `order` and, as `bound`, the class of the costs that it binds
    to; that one has `describe` and `of_displacements` (or `__call__`), and may know what
    `operations` lists. A name that is taken is refused unless `replace` is true.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import numpy as np, wdro_model as wdro
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
    COSTS.check_name(name)

    def register(declared: Declared) -> Declared:
        COSTS.add(name, declared, replace=replace)
        return declared

    return register


def cost_names() -> tuple[str, ...]:
    """The names of costs: registered ones first, then those of packages.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> "norm" in wdro.costs.cost_names()
    True
    """
    return COSTS.names()


def find_cost(name: str) -> type[GroundCost]:
    """The cost called `name`; a package that offers it is imported now, not before.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> wdro.costs.find_cost("norm").__name__
    'Norm'
    """
    return COSTS[name]


@dataclass(frozen=True)
class Operation:
    """Something that a bound cost may know.

    Examples
    --------
    >>> import wdro_model as wdro
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
    """What the costs of a class know and lack, and what each operation is for.

    Examples
    --------
    >>> import wdro_model as wdro
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
    """A ground cost from what the user wrote: a cost, its name, a function, None (default).

    Examples
    --------
    >>> import wdro_model as wdro
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


# ------------------------------------------------------------------ is it what it says?
MOVES = 8
CLOSE, SLOPE = 1e-6, 1e-3
"""Relative errors: of values, and of gradients against differences."""
PROPERTIES = ("dimension", *(n for n in dir(BoundCost) if not callable(getattr(BoundCost, n))))
"""What of a bound cost is no method."""
SLOPES, MOST_DIFFERENCES, MOST_DERIVATIVES = 2, 200, 10_000
"""Slopes at which the dual norm is differentiated, in at most so many coordinates: by differences,
and by CVXPY's derivatives."""


def check(cost: BoundCost, rows: Array | None = None, seed: int = 0) -> None:
    """Raise a ValueError if what a bound cost says of itself does not hold at random moves.

    Costs are not negative and zero at rest; with an order they grow by its power, the same in every
    place and in both directions; `<b, delta> <= |b|_dual |delta|`, which the steepest move attains,
    and so does the gradient of the dual norm in b (by differences up to 200 coordinates, then by
    CVXPY where it has derivatives, up to 10000); the dual norm is the same in CVXPY and as numbers;
    the gradient is that of differences; weights and matrix give the cost. What the cost does not
    know is not tested. rows: some samples (n, d).

    Examples
    --------
    >>> import numpy as np, wdro_model as wdro
    >>> wdro.costs.check(wdro.costs.BoundNorm(3, p=2.0))            # says nothing where all is well
    >>> class Halved(wdro.costs.BoundNorm):
    ...     def dual_norms(self, slopes):
    ...         return super().dual_norms(slopes) / 2
    >>> wdro.costs.check(Halved(3))
    Traceback (most recent call last):
        ...
    ValueError: ...
    """
    for name in PROPERTIES:
        if isfunction(getattr(type(cost), name, None)):
            raise ValueError(
                f"{name} of the cost {cost.describe()} is a method, and must be a property: write "
                f"@property above def {name}(self)."
            )
    rows = np.zeros((MOVES, cost.dimension)) if rows is None else rows
    failures = list(_failures(cost, np.asarray(rows, dtype=float)[:MOVES], seed))
    if failures:
        listed = "\n".join(f"  - {failure}" for failure in failures)
        raise ValueError(f"the cost {cost.describe()} contradicts itself:\n{listed}")


def _asked(cost: BoundCost, operation: str, shape: tuple[int, ...], *arguments: Any) -> Array:
    """What an operation of the cost gives, if it is an array of numbers of that shape."""
    try:
        answer = getattr(cost, operation)(*arguments)
        array = np.asarray(answer.value if operation == "dual_norm" else answer, dtype=float)
    except Exception as error:
        raise ValueError(
            f"{operation} of the cost {cost.describe()} fails at random moves"
            f"{' (a CVXPY expression is asked for)' if operation == 'dual_norm' else ''}: "
            f"{type(error).__name__}: {error}"
        ) from error
    if isinstance(answer, list | tuple):
        raise ValueError(
            f"{operation} of the cost {cost.describe()} must return an array, got a "
            f"{type(answer).__name__}; wrap it in np.array."
        )
    if array.shape != shape and not (shape == () and array.size == 1):
        raise ValueError(
            f"{operation} of the cost {cost.describe()} must give shape {shape} here, got "
            f"{array.shape}."
        )
    return array.reshape(shape)


def _failures(cost: BoundCost, rows: Array, seed: int) -> Iterator[str]:
    rng, free = np.random.default_rng(seed), ~np.asarray(cost.frozen)
    if free.shape != (cost.dimension,):
        yield f"frozen has shape {free.shape}, expected ({cost.dimension},)"
        return
    size = float(np.std(rows)) or 1.0
    delta = size * rng.normal(size=(len(rows), cost.dimension)) * free
    costs = _asked(cost, "__call__", (len(rows),), rows, rows + delta)
    if not np.all(costs >= 0):
        yield f"a move costs {costs.min():.6g}, which is negative or not a number"
    still = np.abs(_asked(cost, "__call__", (len(rows),), rows, rows))
    if np.any(still > CLOSE * max(costs.max(initial=0.0), 1e-300)) and np.any(still > 0):
        yield f"a point that does not move costs {still.max():.6g}, not 0"
    if cost.order is None or not free.any():
        return
    yield from _homogeneity(cost, rows, delta, costs)
    if cost.is_separable and cost.knows("coordinate_weights"):
        weights = np.where(free, cost.coordinate_weights, 0.0)
        yield from _differ("sum_i w_i |delta_i|^p", np.abs(delta) ** cost.order @ weights, costs)
    if cost.is_quadratic and not cost.is_separable and cost.knows("matrix"):
        quadratic = np.einsum("bi,ij,bj->b", delta, cost.matrix, delta)
        yield from _differ("delta' P delta, P its matrix,", quadratic, costs)
    if cost.knows("gradient"):
        yield from _gradient(cost, delta, size * rng.normal(size=delta.shape) * free)
    if cost.knows("dual_norms"):
        yield from _duality(cost, rng.normal(size=delta.shape) * free, delta, costs)
        yield from _attained(cost, rows, rng)


def _homogeneity(cost: BoundCost, rows: Array, delta: Array, costs: Array) -> Iterator[str]:
    assert cost.order is not None
    twice, back = (
        _asked(cost, "__call__", costs.shape, rows, rows + move) for move in (2 * delta, -delta)
    )
    yield from _differ(
        f"twice a move over 2^{cost.order:g}, its order,", twice / 2**cost.order, costs
    )
    yield from _differ("the opposite move", back, costs)
    if cost.knows("of_displacements"):
        found = _asked(cost, "of_displacements", costs.shape, delta)
        yield from _differ("of_displacements", found, costs)


def _gradient(cost: BoundCost, delta: Array, ways: Array) -> Iterator[str]:
    ahead, back = (
        _asked(cost, "of_displacements", delta.shape[:1], delta + step * ways)
        for step in (1e-6, -1e-6)
    )
    slopes = _asked(cost, "gradient", delta.shape, delta)
    expected, found = (ahead - back) / 2e-6, np.sum(slopes * ways, axis=1)
    worst = int(np.argmax(np.abs(expected - found)))
    if abs(expected[worst] - found[worst]) > SLOPE * max(1e-300, float(np.abs(expected).max())):
        yield (
            f"its gradient gives the slope {found[worst]:.6g} along a line, differences of its "
            f"values {expected[worst]:.6g}"
        )


def _duality(cost: BoundCost, slopes: Array, delta: Array, costs: Array) -> Iterator[str]:
    assert cost.order is not None
    if cost.knows("gradient"):
        # The gradient of a cost is a slope whose steepest move is the move itself.
        slopes = np.vstack([slopes, cost.gradient(delta)])
    if cost.knows("dual_norm"):
        written = [_asked(cost, "dual_norm", (), cp.Constant(b)) for b in slopes]
    norms = _asked(cost, "dual_norms", slopes.shape[:1], slopes)
    moves, lengths = delta, costs ** (1.0 / cost.order)
    excess = slopes @ moves.T - norms[:, None] * lengths * (1 + CLOSE)
    if excess.max() > CLOSE * norms.max():
        b, m = np.unravel_index(int(np.argmax(excess)), excess.shape)
        yield (
            f"a slope gains {float(slopes[b] @ moves[m]) / lengths[m]:.6g} along a move of length "
            f"1, more than its dual norm {norms[b]:.6g}"
        )
    if cost.knows("dual_norm"):
        yield from _differ("the dual norm in CVXPY", np.array(written), norms, "as numbers")
    if cost.knows("steepest_move"):
        best = np.array([_asked(cost, "steepest_move", b.shape, b) for b in slopes])
        yield from _differ("<b, steepest move>", np.sum(best * slopes, axis=1), norms, "|b|_dual")
        lengths = _asked(cost, "of_displacements", best.shape[:1], best)
        yield from _differ("a steepest move", lengths, np.ones(len(best)), "1")


def _attained(cost: BoundCost, rows: Array, rng: np.random.Generator) -> Iterator[str]:
    """Is the dual norm attained? Its gradient m at b has <b, m> = |b|_dual and length 1.

    A dual norm that is too low has a gradient that is too short, and one too high a longer one.
    """
    assert cost.order is not None
    for _ in range(SLOPES):
        found = _steepest_by_gradient(cost, rng)
        if found is None:
            continue
        slope, move, norm = found
        gain = float(slope @ move) / max(norm, 1e-300)
        length = float(cost(rows[:1], rows[:1] + move)[0]) ** (1.0 / cost.order)
        if abs(gain - 1) > SLOPE or abs(length - 1) > SLOPE:
            yield (
                f"the gradient of the dual norm is a move of length {length:.6g} that gains "
                f"{gain:.6g} times the dual norm, not 1 and 1: the dual norm is too "
                f"{'low' if length < gain else 'high'}, it is not that of this cost"
            )
            return


def _steepest_by_gradient(
    cost: BoundCost, rng: np.random.Generator
) -> tuple[Array, Array, float] | None:
    """A random slope, the gradient of its dual norm and the norm; None where that is not known.

    By differences, and by CVXPY where there are many coordinates.
    """
    free = ~np.asarray(cost.frozen)
    if cost.dimension > MOST_DIFFERENCES:
        if not cost.knows("dual_norm") or cost.dimension > MOST_DERIVATIVES:
            return None
        slope = cp.Variable(cost.dimension)
        slope.value = rng.normal(size=cost.dimension) * free
        try:
            norm = cost.dual_norm(slope)
            gradient = norm.grad[slope]
        except Exception:  # some atoms have no derivatives, and say so in many ways
            return None
        if gradient is None or not hasattr(gradient, "toarray"):
            return None
        return slope.value, np.ravel(gradient.toarray()) * free, float(norm.value)
    if not cost.knows("of_displacements"):
        return None
    scales = np.where(free, cost.coordinate_scales, 0.0)
    scales = np.where(np.isfinite(scales), scales, 0.0)
    where = np.flatnonzero(scales > 0)
    steps = 1e-5 * np.diag(scales)[where]
    point, way = (scales * rng.normal(size=scales.shape) for _ in range(2))
    tried = np.vstack([point, point + 1e-6 * way, point - 1e-6 * way, point + steps, point - steps])
    norms = _asked(cost, "dual_norms", tried.shape[:1], tried)
    ahead, back = np.split(norms[3:], 2)
    move = np.zeros(cost.dimension)
    move[where] = (ahead - back) / (2e-5 * scales[where])
    along = (norms[1] - norms[2]) / 2e-6
    # At a kink differences of two sizes disagree.
    smooth = len(where) > 0 and abs(along - way @ move) <= SLOPE * norms[0]
    return (point, move, float(norms[0])) if smooth else None


def _differ(name: str, found: Array, expected: Array, other: str = "the cost") -> Iterator[str]:
    gaps = np.abs(found - expected)
    worst = int(np.argmax(gaps))
    if not gaps[worst] <= CLOSE * max(1e-300, float(np.abs(expected).max())):
        yield f"{name} is {found[worst]:.6g}, but {other} is {expected[worst]:.6g}"
