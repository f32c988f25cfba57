"""The test of an atom: its rule and its facts against the values that `numeric` computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from numbers import Real
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.errors import MissingRuleError
from wdro_model.loss.atoms.cvxpy_classes import Atom
from wdro_model.loss.atoms.facts import (
    AtomFacts,
    NoPieces,
    Operand,
    brief,
    facts_of,
    prepare,
)
from wdro_model.loss.batched import Layout, dense_value
from wdro_model.loss.expressions import as_scalar, constant_number, substitute, times
from wdro_model.loss.polynomial import Degrees, SumSplit, affine_parts
from wdro_model.loss.structure import AtomEntry
from wdro_model.uncertainty.joint import JointSamples
from wdro_model.uncertainty.parameter import UncertainParameter

Array = np.ndarray


@dataclass(frozen=True)
class Tolerances:
    """Allowed distances between an atom and its facts, and where the two are compared."""

    value: float = 1e-6
    """Relative difference of two values; below about 1e-8, rounding would fail correct atoms."""
    slope: float = 1e-4
    """Relative difference of a pullback and a difference quotient, whose own error is 1e-8."""
    step: float = 1e-6
    """Length of a difference, relative to the operands; rounding spoils shorter ones."""
    far_slope: float = 1e-3
    """Relative difference of slopes far away, where an atom differs from `far` by 1 / distance."""
    distance: float = 1e6
    """Distance that counts as far away, in standard deviations of the data."""
    sample_count: int = 8
    """Samples at which an atom is evaluated, and the same number of moved samples."""
    move_lengths: tuple[float, ...] = (1.0, 4.0, 10.0)
    """Moves of samples in standard deviations; larger ones test more distant branches."""
    line_count: int = 12
    """Segments between samples along which polynomial degrees are tested."""
    highest_degree: int = 6
    """Largest degree that is tested; differences of a higher order are rounding."""


TOLERANCES = Tolerances()
OUTSIDE_DOMAIN = (NotImplementedError, ArithmeticError, ValueError)
"""Errors of an atom where it cannot be evaluated."""


def check_atom(
    expression: Any, decision: Mapping[cp.Variable, Any] | None = None, *, seed: int = 0
) -> None:
    """Compare the rule and the facts of an atom with its own `numeric`.

    A ValueError names the atom, the point and both values. Tested are: the values of the rule; its
    pullbacks, by differences; `degree`, by differences along lines in the data; the values of
    `adjoints`, `pieces`, `far`, `square`, `terms`, `factor`, `times` and `rebuild`;
    `is_homogeneous` and `is_entrywise`, at changed arguments. Other facts are not tested.

    Parameters
    ----------
    expression
        The atom applied to its arguments. If they contain uncertain parameters, the atom is tested
        at samples and moved samples, and so are its facts about the data.
    decision
        Values of the variables; by default random ones of order one and of the size of the data.

    Examples
    --------
    >>> from wdro_model.testing import check_atom
    >>> class Twice(cp.abs):                                   # its rule is that of cp.abs
    ...     def numeric(self, values):
    ...         return 2 * np.abs(values[0])
    >>> price = wdro.UncertainParameter(2, samples=[[1.0, -2.0], [0.5, 3.0]])
    >>> check_atom(cp.abs(price - cp.Variable(2)))              # says nothing where all is well
    >>> check_atom(Twice(price - cp.Variable(2)))
    Traceback (most recent call last):
        ...
    ValueError: the rule of the atom 'Twice' gives ... where its numeric() gives ...
    """
    if not isinstance(expression, Atom):
        raise TypeError(
            f"check_atom takes an atom applied to its arguments, got {type(expression).__name__}."
        )
    check = AtomCheck(expression, np.random.default_rng(seed))
    decisions = check.random_decisions()
    if decision is not None:
        decisions = [check.layout.join({v: np.asarray(a) for v, a in decision.items()})]
    with np.errstate(all="ignore"):
        tested = [check.check_at(x) for x in decisions]
    if not any(tested):
        raise ValueError(
            f"the numeric() of the atom {check.name!r} has no finite value where it was tried; "
            "pass a decision, and samples, inside its domain."
        )


@dataclass(frozen=True)
class Place:
    """The atom at one decision and several scenarios."""

    x: Array
    rows: Array
    """Scenarios (B, d) at which the atom has finite values."""
    operands: list[Array]
    """The values of the operands of its rule, (B, *shape) where they depend on the data."""
    values: Array
    """The values of the atom by `numeric`: (B, *shape), or (*shape,) if it contains no data."""


class AtomCheck:
    """The comparisons of the facts of one atom with its values."""

    def __init__(self, atom: Any, rng: np.random.Generator) -> None:
        self.atom, self.rng = atom, rng
        self.name, self.facts = type(atom).__name__, facts_of(atom)
        self.parameters = [p for p in atom.parameters() if isinstance(p, UncertainParameter)]
        self.joint = JointSamples(self.parameters) if self.parameters else None
        self.layout = Layout(atom.variables())
        self.degrees = Degrees(self.parameters)
        self.operands = [
            Operand(e, any(p in self.parameters for p in e.parameters()))
            for e in self.facts.operands(atom)
        ]
        self.batched = any(o.batched for o in self.operands)
        self.spread, self.rows = np.ones(1), np.zeros((1, 0))
        if self.joint is not None:
            data = self.joint.matrix
            deviation = data.std(axis=0)
            size = np.maximum(np.abs(data).max(axis=0), 1.0)
            self.spread = np.where(deviation > 0, deviation, size)
            self.rows = self._rows(self.joint)

    # -------------------------------------------------------------- decisions and scenarios
    def random_decisions(self) -> list[Array]:
        """Random decisions of order one and of the size of the data, projected on attributes."""
        normal = self.rng.normal(size=(3, self.layout.dimension))
        decisions = []
        for x in (normal[0], np.abs(normal[1]), float(np.median(self.spread)) * normal[2]):
            values = {v: (v.project(a), a.shape) for v, a in self.layout.split(x).items()}
            same = {v: a for v, (a, shape) in values.items() if a.shape == shape}
            decisions.append(self.layout.join(same))
        return decisions

    def _rows(self, joint: JointSamples) -> Array:
        """Samples, with the extreme ones, and moved samples that lie in the support."""
        data, count = joint.matrix, TOLERANCES.sample_count
        length = np.linalg.norm(data / self.spread, axis=1)
        extreme = [
            k for column in (length, *data.T[:2]) for k in (column.argmax(), column.argmin())
        ]
        chosen = dict.fromkeys([*extreme, *self.rng.permutation(len(data))[:count]])
        origins, moves = self._random_moves(joint)
        moved = origins + np.resize(TOLERANCES.move_lengths, count)[:, None] * moves
        return np.concatenate([data[list(chosen)[:count]], moved[joint.contains(moved)]])

    def _random_moves(self, joint: JointSamples) -> tuple[Array, Array]:
        """Random samples, and a random move of one standard deviation for each."""
        origins = joint.matrix[self.rng.integers(joint.size, size=TOLERANCES.sample_count)]
        return origins, self.rng.normal(size=origins.shape) * self.spread

    def place(self, x: Array, rows: Array) -> Place | None:
        """The atom at a decision and those rows where it has finite values; None if none has."""
        rows_with_value, operands, values = [], [], []
        for row in rows:
            with self.holding(x, row):
                try:
                    own = self.atom.numeric([dense_value(a) for a in self.atom.args])
                    own = np.asarray(own, dtype=float).reshape(self.atom.shape)
                except OUTSIDE_DOMAIN:
                    continue
                if np.isfinite(own).all():
                    rows_with_value.append(row)
                    values.append(own)
                    operands.append([dense_value(o.expression) for o in self.operands])
        if not values:
            return None
        stacked = [
            np.array(column) if o.batched else column[0]
            for o, column in zip(self.operands, zip(*operands))
        ]
        own = np.array(values) if self.batched else values[0]
        return Place(x, np.array(rows_with_value), stacked, own)

    @contextmanager
    def holding(self, x: Array, row: Array) -> Iterator[None]:
        """Set the variables and parameters to these values inside the block."""
        with ExitStack() as stack:
            stack.enter_context(self.layout.holding(x))
            if self.joint is not None:
                for p in self.parameters:
                    stack.callback(p.save_value, p.value)
                for p, value in self.joint.split(row[None]).items():
                    p.save_value(np.array(value[0]))
            yield

    def operands_at(self, place: Place, k: int) -> str:
        """The operands of one scenario, for a message."""
        values = (v[k] if o.batched else v for o, v in zip(self.operands, place.operands))
        return ", ".join(map(words, values))

    # -------------------------------------------------------------- the comparisons
    def check_at(self, x: Array) -> bool:
        """Make all comparisons at one decision; return False if the atom has no value there."""
        place = self.place(x, self.rows)
        if place is None:
            return False
        check_rule(self.atom, self.operands, place.operands, place.values)
        if self.batched:  # the rule without a batch axis, at the first scenario
            single = [Operand(o.expression, False) for o in self.operands]
            values = [v[0] if o.batched else v for o, v in zip(self.operands, place.operands)]
            check_rule(self.atom, single, values, place.values[0])
        self.check_claims(place)
        if self.joint is None or not self.batched:
            return True
        self.ask("degree", [self.degrees(read) for read in self.facts.reads(self.atom)])
        degree = self.degrees(self.atom)
        if degree <= TOLERANCES.highest_degree:
            self.check_degree(place, int(degree))
        if degree == 1:
            self.check_slopes(place)
        else:
            self.check_pieces(place)
        self.check_rewritten(place)
        self.check_far(place)
        return True

    def numeric(self, values: Sequence[Array]) -> Array | None:
        """The values of the atom at operands, by `numeric`; None where it cannot be evaluated."""
        count = next((len(v) for o, v in zip(self.operands, values) if o.batched), 1)
        try:
            own = [
                self.atom.numeric(
                    [(v[k] if o.batched else v).copy() for o, v in zip(self.operands, values)]
                )
                for k in range(count)
            ]
            array = np.array(own, dtype=float).reshape(count, *self.atom.shape)
        except OUTSIDE_DOMAIN:
            return None
        return array if self.batched else array[0]

    def ask(self, fact: str, *given: Any) -> Any:
        """The answer of a fact of the atom, checked to be of the kind that the library expects."""
        try:
            answer = getattr(self.facts, fact)(self.atom, *given)
        except (NoPieces, NotImplementedError):
            raise
        except Exception as error:
            if getattr(self.facts, fact).__module__.startswith("wdro_model."):
                raise
            raise ValueError(
                f"the fact {fact} of the atom {self.name!r} fails: {type(error).__name__}: {error}"
            ) from error
        is_right, kind = KINDS.get(fact, (is_expression, "a CVXPY expression"))
        allowed_none = answer is None and fact not in ("degree", "pieces")
        if not allowed_none and not is_right(answer):
            types = type(answer).__name__
            if isinstance(answer, (list, tuple)):
                types = f"[{', '.join(type(entry).__name__ for entry in answer)}]"
            elif answer is None or isinstance(answer, Real):
                types = repr(answer)
            raise ValueError(
                f"the fact {fact} of the atom {self.name!r} must return {kind}; got {types}."
            )
        return answer

    def check_claims(self, place: Place) -> None:
        """Test the declarations `is_homogeneous` and `is_entrywise` at changed operands."""
        if len(self.operands) != len(self.atom.args):
            return
        twice = self.numeric([2 * v for v in place.operands])
        if self.facts.is_homogeneous and twice is not None:
            gap = np.abs(twice - 2 * place.values)
            if (wrong := first_index(gap > TOLERANCES.value * np.abs(twice) + 1e-9)) is not None:
                raise ValueError(
                    f"the atom {self.name!r} is declared as is_homogeneous, but is "
                    f"{place.values[wrong]:.6g} at {self.operands_at(place, (*wrong, 0)[0])} and "
                    f"{twice[wrong]:.6g} at twice that; leave the fact out."
                )
        if not self.facts.is_entrywise or self.atom.size == 1:
            return
        moved = [v.copy() for v in place.operands]
        for v in moved:
            v.reshape(*v.shape[: v.ndim - self.atom.ndim], -1)[..., 0] *= 1.5
        if (changed := self.numeric(moved)) is None:
            return
        other, own = (v.reshape(-1, self.atom.size)[:, 1:] for v in (changed, place.values))
        if (np.abs(other - own) > TOLERANCES.value * (1.0 + np.abs(own))).any():
            raise ValueError(
                f"the atom {self.name!r} is known as is_entrywise (it is declared so, or derives "
                "from Elementwise), but another entry of its value changes with the first entry "
                "of its argument; declare is_entrywise = False."
            )

    def check_degree(self, place: Place, degree: int) -> None:
        """Compare differences of order degree + 1 along lines in the data with zero."""
        rows, count = place.rows, TOLERANCES.line_count
        if len(rows) < 2:
            return
        first = self.rng.integers(len(rows), size=count)
        second = (first + self.rng.integers(1, len(rows), size=count)) % len(rows)
        steps = np.linspace(0.0, 1.0, degree + 8)[None, :, None]
        start, end = rows[first, None], rows[second, None]
        along = (start + steps * (end - start)).reshape(-1, rows.shape[1])
        line = self.place(place.x, along)
        if line is None or len(line.rows) < len(along):
            return
        values = line.values.reshape(count, degree + 8, -1)
        left = np.abs(np.diff(values, n=degree + 1, axis=1)).max(axis=1)
        size = 2.0**degree * np.abs(values).max(axis=(1, 2))[:, None]
        if (wrong := first_index(left > TOLERANCES.value * size)) is not None:
            k, entry = wrong
            raise ValueError(
                f"the atom {self.name!r} in '{brief(self.atom)}' is declared to have degree "
                f"{degree} in the data, but its differences of order {degree + 1} are not zero: "
                f"between {words(start[k, 0])} and {words(end[k, 0])} it has the values "
                f"{words(values[k, :: max(1, (degree + 7) // 3), entry])}. Correct the fact "
                "degree(atom, degrees); math.inf is no polynomial."
            )

    def check_slopes(self, place: Place) -> None:
        """Compare adjoints and constant_part with the values of an atom affine in the data."""
        assert self.joint is not None
        weights = self.rng.uniform(0.5, 1.5, self.atom.shape)
        parts = affine_parts(cp.sum(cp.multiply(weights, self.atom)), self.parameters)
        with self.layout.holding(place.x):
            claimed = np.full(len(place.rows), float(parts.constant.value))
            for p, values in self.joint.split(place.rows).items():
                slope = dense_value(parts.slopes[p])
                claimed += (values * slope).reshape(len(claimed), -1).sum(axis=1)
        weighted = (weights * place.values).reshape(len(claimed), -1)
        own, size = weighted.sum(axis=1), np.abs(weighted).sum(axis=1)
        for k in np.flatnonzero(differ(claimed, own, size)):
            raise ValueError(
                f"the facts adjoints and constant_part of the atom {self.name!r} in "
                f"'{brief(self.atom)}' are not its slope and its constant part: "
                f"they give {claimed[k]:.6g}, the atom is {own[k]:.6g}, at the data "
                f"{words(place.rows[k])}; correct them."
            )

    def check_pieces(self, place: Place) -> None:
        """Compare the maximum of the pieces with the atom, or with minus the atom."""
        entries = self.rng.permutation(self.atom.size)[:4]
        for entry, sign in ((int(e), sign) for e in entries for sign in (1, -1)):
            try:
                at = AtomEntry(self.atom, entry, self.degrees, 64)
                pieces = self.ask("pieces", sign, at)
            except NoPieces:
                continue
            for piece in pieces:
                why = ""
                if piece.size != 1:
                    why = (
                        f" of shape {piece.shape}, where each needs one entry; take the entry that "
                        "is asked for with at.part(argument)."
                    )
                elif self.degrees(piece) > 1:
                    why = (
                        ", which is not affine in the data: its degree is "
                        f"{self.degrees(piece):g}; raise NoPieces where the atom is no maximum of "
                        "affine pieces."
                    )
                if why:
                    raise ValueError(
                        f"the pieces of the atom {self.name!r} hold '{brief(piece)}'{why}"
                    )
            for k, row in enumerate(place.rows):
                with self.holding(place.x, row):
                    largest = max(float(np.reshape(piece.value, ())) for piece in pieces)
                value = sign * float(place.values[k].ravel(order="F")[entry])
                if differ(largest, value, abs(value)):
                    raise ValueError(
                        f"the largest of the {len(pieces)} pieces of the atom {self.name!r} for "
                        f"the sign {sign} is {largest:.6g} where {'minus ' if sign < 0 else ''}"
                        f"the atom is {value:.6g}, at {self.operands_at(place, k)}; correct the "
                        "fact pieces(atom, sign, at), and raise NoPieces for a sign that has none."
                    )

    def check_rewritten(self, place: Place) -> None:
        """Compare rewritten forms of the atom with its values, summed over entries."""
        assert self.joint is not None
        written = list(self._rewritten())
        for k, row in enumerate(place.rows):
            scenario = {p: value[0] for p, value in self.joint.split(row[None]).items()}
            with self.holding(place.x, row):
                here = [*written, ("rebuild", substitute(self.atom, scenario), 1.0)]
                sums = [(fact, factor, float(np.sum(e.value))) for fact, e, factor in here]
            own, size = float(place.values[k].sum()), float(np.abs(place.values[k]).sum())
            for fact, factor, claimed in sums:
                if differ(claimed, factor * own, 2 * size):
                    raise ValueError(
                        f"the fact {fact} of the atom {self.name!r} makes {claimed:.6g} of what "
                        f"is {factor * own:.6g}, summed over its entries, at "
                        f"{self.operands_at(place, k)}; correct it."
                    )

    def _rewritten(self) -> Iterator[tuple[str, Any, float]]:
        """(fact, expression, factor): the sum of the expression is factor * sum(atom)."""
        if (square := self.ask("square")) is not None:
            yield "square", cp.sum_squares(square[0]) / as_scalar(square[1]), 1.0
        if (terms := self.ask("terms", SumSplit(self.degrees))) is not None:
            yield "terms", sum(cp.sum(term) for term in terms), 1.0
        if (factor := self.ask("factor", constant_number)) is not None:
            yield "factor", factor[0] * factor[1], 1.0
        if (same := self.ask("same_number")) is not None:
            yield "same_number", same, 1.0
        if type(self.facts).times is not AtomFacts.times:
            yield "times", self.ask("times", 2.0, times), 2.0

    def check_far(self, place: Place) -> None:
        """Compare the slopes of the declared distant form with those of the atom far away."""
        if type(self.facts).far is AtomFacts.far or self.joint is None:
            return
        origins, moves = self._random_moves(self.joint)
        rows = np.concatenate([origins + far * TOLERANCES.distance * moves for far in (1, 2)])
        inside = self.joint.contains(rows).reshape(2, -1).all(axis=0)
        count = int(inside.sum())
        distant = self.place(place.x, rows[np.tile(inside, 2)]) if count else None
        if distant is None or len(distant.rows) < 2 * count:
            return
        for k in range(count):
            ends = [
                [v[i] if o.batched else v for o, v in zip(self.operands, distant.operands)]
                for i in (k, count + k)
            ]
            forms = [self.ask("far", [cp.Constant(v) for v in values]) for values in ends]
            if forms[0] is None or forms[1] is None:
                return
            own = distant.values[count + k] - distant.values[k]
            claimed = np.broadcast_to(forms[1].value - forms[0].value, own.shape)
            size = max(float(np.max(np.abs(b - a), initial=0.0)) for a, b in zip(*ends))
            allowed = TOLERANCES.far_slope * np.maximum(np.abs(claimed), np.abs(own))
            wrong = first_index(np.abs(claimed - own) > allowed + TOLERANCES.value * size)
            if wrong is not None:
                raise ValueError(
                    f"the fact far of the atom {self.name!r} has another slope than the atom: "
                    f"from {self.operands_at(distant, k)} to "
                    f"{self.operands_at(distant, count + k)} it rises by {claimed[wrong]:.6g}, the "
                    f"atom's numeric() by {own[wrong]:.6g}; correct one of them."
                )


# ------------------------------------------------------------------ the rule
def check_rule(
    atom: Any, operands: Sequence[Operand], values: Sequence[Array], expected: Array
) -> None:
    """Compare a rule with the atom at operands, and its pullbacks with differences."""
    name = type(atom).__name__
    kernel = prepare(atom, tuple(operands))
    result = _call(name, kernel, values)
    try:
        value = np.broadcast_to(np.asarray(result[0], dtype=float), expected.shape)
    except ValueError:
        raise ValueError(
            f"the rule of the atom {name!r} gives a value of shape {np.shape(result[0])}, where "
            f"one of shape {expected.shape} is needed for operands of shape {_shapes(values)}."
        ) from None
    wrong = first_index(~np.isclose(value, expected, rtol=TOLERANCES.value, atol=1e-9))
    if wrong is not None:
        k = wrong[0] if wrong else 0
        at = ", ".join(words(v[k] if o.batched else v) for o, v in zip(operands, values))
        raise ValueError(
            f"the rule of the atom {name!r} gives {value[wrong]:.6g} where its numeric() gives "
            f"{expected[wrong]:.6g}, at the operands {at}; correct one of them."
        )
    rng = np.random.default_rng(1)
    weights = rng.uniform(0.5, 1.5, expected.shape)
    noise = 1e-14 * float(np.sum(np.abs(weights * expected))) / TOLERANCES.step
    for k, operand in enumerate(values):
        move = rng.uniform(0.5, 1.5, operand.shape) * (1.0 + np.abs(operand))
        whose = f"the pullback of operand {k} in the rule of the atom {name!r}"
        slope, shape = _pulled_slope(whose, result[k + 1], weights, operand, move)
        low, high = _slopes_to_both_sides(kernel, k, values, weights, move)
        allowed = TOLERANCES.slope * (1.0 + abs(low + high) / 2) + noise
        if np.isfinite([low, high]).all() and not low - allowed <= slope <= high + allowed:
            usual = shape in (operand.shape, (*expected.shape[:1], *operand.shape))
            raise ValueError(
                f"{whose} is not the derivative of its value: {slope:.6g} against differences of "
                f"{(low + high) / 2:.6g}"
                + ("." if usual else f"; its shape is {shape}, the operand's {operand.shape}.")
            )


def _call(name: str, kernel: Callable[..., Any], values: Sequence[Array]) -> tuple[Any, ...]:
    """The value and the pullbacks of a rule, checked; errors name the rule."""
    given = [v.copy() for v in values]
    try:
        result = kernel(*given)
    except MissingRuleError:
        raise
    except Exception as error:
        raise ValueError(
            f"the rule of the atom {name!r} fails on values of shape {_shapes(values)}: "
            f"{type(error).__name__}: {error}; it takes the atom and the values of its "
            f"{len(values)} operand(s), and a value has the shape of its expression, preceded by "
            "the batch axis only if the expression sees the data."
        ) from error
    good = isinstance(result, tuple) and len(result) == len(values) + 1
    if not good or not all(map(callable, result[1:])):
        raise ValueError(
            f"the rule of the atom {name!r} must return a tuple: the value, then one pullback (a "
            f"function) for each of its {len(values)} operand(s); got {type(result).__name__}."
        )
    if not all(np.array_equal(a, b) for a, b in zip(given, values)):
        raise ValueError(
            f"the rule of the atom {name!r} changes the values that it is given; work on a copy."
        )
    return result


def _pulled_slope(
    whose: str, pullback: Callable[[Array], Any], weights: Array, operand: Array, move: Array
) -> tuple[float, tuple[int, ...]]:
    """The slope along a move by the pullback, and the shape of the array that it returned."""
    shape: Any = None
    try:
        pulled = np.asarray(pullback(weights), dtype=float)
        shape = pulled.shape
        pulled = pulled.sum(axis=0) if pulled.ndim > operand.ndim else pulled
        return float(np.sum(np.broadcast_to(pulled, operand.shape) * move)), shape
    except Exception as error:
        why = error if shape is None else f"its answer has the shape {shape}"
        raise ValueError(
            f"{whose} fails: {why}; it takes an array of the value's shape, {weights.shape}, and "
            f"returns one of the operand's, {operand.shape}."
        ) from error


def _slopes_to_both_sides(
    kernel: Callable[..., Any], k: int, values: Sequence[Array], weights: Array, move: Array
) -> tuple[float, float]:
    """The smaller and the larger of the forward and backward differences of weights * value."""

    def total(step: float) -> float:
        moved = [v + step * move if j == k else v.copy() for j, v in enumerate(values)]
        try:
            return float(np.sum(weights * np.asarray(kernel(*moved)[0])))
        except OUTSIDE_DOMAIN:
            return np.nan

    step, here = TOLERANCES.step, total(0.0)
    quotients = (total(step) - here) / step, (here - total(-step)) / step
    return min(quotients), max(quotients)


# ------------------------------------------------------------------ answers and messages
def is_expression(answer: Any) -> bool:
    return isinstance(answer, cp.Expression)


def are_expressions(answer: Any) -> bool:
    return isinstance(answer, list | tuple) and len(answer) > 0 and all(map(is_expression, answer))


KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "degree": (
        lambda answer: isinstance(answer, Real) and float(answer) >= 0.0,
        "a number, 0, 1, 2, ... or math.inf",
    ),
    "pieces": (
        are_expressions,
        "a list of CVXPY expressions, one at least (raise NoPieces where there are none)",
    ),
    "terms": (are_expressions, "a list of CVXPY expressions, or None for the atom itself"),
    "factor": (
        lambda answer: isinstance(answer[0], Real) and is_expression(answer[1]),
        "(number, CVXPY expression), or None",
    ),
    "square": (
        lambda answer: are_expressions(answer) and len(answer) == 2,
        "(u, t), two CVXPY expressions such as (v, cp.Constant(1)), or None",
    ),
}
"""(test of the answer, its kind in words) by fact; the answer of others is an expression."""


def differ(claimed: Any, own: Any, size: Any) -> Any:
    """The mask of values that differ by more than rounding; size: magnitude of their terms."""
    return np.abs(claimed - own) > TOLERANCES.value * (1.0 + size + np.abs(claimed))


def first_index(wrong: Any) -> tuple[int, ...] | None:
    """The index of the first True entry, None if there is none."""
    wrong = np.asarray(wrong)
    return tuple(map(int, np.argwhere(wrong)[0])) if wrong.any() else None


def words(value: Any) -> str:
    """An array in one line, shortened to fit a message."""
    return " ".join(np.array2string(np.asarray(value), precision=4, threshold=6).split())


def _shapes(values: Sequence[Array]) -> str:
    return ", ".join(str(v.shape) for v in values)
