"""The test of an atom: are its rule and its facts those of the function that `numeric` computes?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.errors import MissingRuleError
from wdro_model.loss.affine_pieces import AtomEntry, PieceSearch
from wdro_model.loss.atoms.cvxpy_classes import Atom
from wdro_model.loss.atoms.facts import (
    AtomFacts,
    NoPieces,
    NoVectorForm,
    Operand,
    brief,
    facts_of,
    prepare,
)
from wdro_model.loss.batched import Layout, dense_value
from wdro_model.loss.expressions import as_scalar, constant_number, substitute, times
from wdro_model.loss.polynomial import Degrees, SumSplit, affine_parts
from wdro_model.uncertainty.joint import JointSamples
from wdro_model.uncertainty.parameter import UncertainParameter

Array = np.ndarray


@dataclass(frozen=True)
class Tolerances:
    """How far an atom may be from what its facts say, and where the two are compared."""

    value: float = 1e-6
    """Relative difference of two values; below about 1e-8 rounding fails right atoms."""
    slope: float = 1e-4
    """Relative difference of a pullback and a difference quotient, whose own error is 1e-8."""
    step: float = 1e-6
    """Length of a difference, relative to the operands; shorter ones drown in rounding."""
    far_slope: float = 1e-3
    """Relative difference of slopes far away; distant forms are approached as 1 / distance."""
    distance: float = 1e6
    """What counts as far away, in standard deviations of the data."""


TOLERANCES = Tolerances()
SAMPLE_COUNT = 8
"""Samples at which an atom is evaluated, and as many that are moved; more tell little."""
MOVE_LENGTHS = (1.0, 4.0, 10.0)
"""How far samples are moved, in standard deviations: branches beyond the last are not seen."""
LINE_COUNT = 12
"""Segments between samples along which polynomial degrees are tested."""
HIGHEST_DEGREE = 6
"""Degrees above are not tested: differences of so high an order are rounding."""
OPERAND_CENTRES = (0.0, 1.5)
"""Random operands are drawn around zero, and where logarithms and roots are defined."""
OUTSIDE_DOMAIN = (NotImplementedError, ArithmeticError, ValueError)
"""What an atom raises where it cannot be evaluated."""


def check_atom(
    expression: Any, decision: Mapping[cp.Variable, Any] | None = None, *, seed: int = 0
) -> None:
    """Hold the rule and the facts of an atom against its own `numeric`.

    A ValueError names the atom, the place and both values. Compared are the rule by its values and
    its pullbacks by differences, `degree` by differences along lines in the data, `adjoints`,
    `pieces`, `far`, `square`, `terms`, `factor`, `times` and `rebuild` by their values,
    `is_homogeneous` and `is_entrywise` by trying. What is not declared is not tested.

    Parameters
    ----------
    expression
        The atom applied to its arguments. With uncertain parameters in them it is tested at their
        samples, at moved samples, and for what it says of the data.
    decision
        Values of the variables; by default some of order one, and of that of the data.

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
        check.check_kinds()
        check.check_rule_at_random_operands()
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
    """The values of what its rule takes, (B, *shape) where they depend on the data."""
    values: Array
    """The atom's own values (B, *shape), by `numeric`; (*shape,) where it sees no data."""


class AtomCheck:
    """One atom, the data that it sees, and the comparisons of its facts with its values."""

    def __init__(self, atom: Any, rng: np.random.Generator) -> None:
        self.atom, self.rng = atom, rng
        self.name, self.facts = type(atom).__name__, facts_of(atom)
        uncertain = [p for p in atom.parameters() if isinstance(p, UncertainParameter)]
        self.joint = JointSamples(uncertain) if uncertain else None
        self.parameters = tuple(uncertain)
        self.layout = Layout(atom.variables())
        self.degrees = Degrees(uncertain)
        self.operands = [
            Operand(e, any(p in uncertain for p in e.parameters()))
            for e in self.facts.operands(atom)
        ]
        self.batched = any(o.batched for o in self.operands)
        self.rows = np.zeros((1, 0)) if self.joint is None else self._rows(self.joint)

    # -------------------------------------------------------------- decisions and scenarios
    def random_decisions(self) -> list[Array]:
        """Some decisions of order one, and of that of the data, with the attributes they need."""
        unit = 1.0 if self.joint is None else float(np.median(_spread(self.joint)))
        normal = self.rng.normal(size=(3, self.layout.dimension))
        return [self._projected(x) for x in (normal[0], np.abs(normal[1]), unit * normal[2])]

    def _projected(self, x: Array) -> Array:
        values = {v: (v.project(a), a.shape) for v, a in self.layout.split(x).items()}
        return self.layout.join({v: a for v, (a, shape) in values.items() if a.shape == shape})

    def _rows(self, joint: JointSamples) -> Array:
        """Some samples, the extreme ones among them, and moved ones in the support."""
        data = joint.matrix
        length = np.linalg.norm(data / _spread(joint), axis=1)
        extreme = [int(length.argmax()), int(length.argmin())]
        for i in range(min(2, data.shape[1])):
            extreme += [int(data[:, i].argmax()), int(data[:, i].argmin())]
        others = self.rng.permutation(len(data))[:SAMPLE_COUNT].tolist()
        samples = data[list(dict.fromkeys(extreme + others))[:SAMPLE_COUNT]]
        lengths = np.resize(MOVE_LENGTHS, SAMPLE_COUNT)[:, None]
        moved = self._origins(joint) + lengths * self._moves(joint)
        return np.concatenate([samples, moved[joint.contains(moved)]])

    def _origins(self, joint: JointSamples) -> Array:
        return joint.matrix[self.rng.integers(joint.size, size=SAMPLE_COUNT)]

    def _moves(self, joint: JointSamples) -> Array:
        """Random moves of one standard deviation."""
        return self.rng.normal(size=(SAMPLE_COUNT, joint.dimension)) * _spread(joint)

    def place(self, x: Array, rows: Array) -> Place | None:
        """The atom at a decision and the rows where it has a value; None if there are none."""
        kept, operands, values = [], [], []
        with self.layout.holding(x):
            for row in rows:
                with held_values(self._scenario(row)):
                    try:
                        own = self.atom.numeric([dense_value(a) for a in self.atom.args])
                        own = np.asarray(own, dtype=float).reshape(self.atom.shape)
                    except OUTSIDE_DOMAIN:
                        continue
                    if np.isfinite(own).all():
                        kept.append(row)
                        values.append(own)
                        operands.append([dense_value(o.expression) for o in self.operands])
        if not kept:
            return None
        stacked = [
            np.array(column) if o.batched else column[0]
            for o, column in zip(self.operands, zip(*operands))
        ]
        return Place(x, np.array(kept), stacked, np.array(values) if self.batched else values[0])

    def _scenario(self, row: Array) -> dict[Any, Array]:
        if self.joint is None:
            return {}
        return {p: value[0] for p, value in self.joint.split(row[None]).items()}

    def operands_at(self, place: Place, index: tuple[int, ...] | int) -> str:
        """The operands of one scenario, for a message."""
        k = index if isinstance(index, int) else index[0]
        values = (v[k] if o.batched else v for o, v in zip(self.operands, place.operands))
        return ", ".join(map(shown, values))

    # -------------------------------------------------------------- the comparisons
    def check_at(self, x: Array) -> bool:
        """Compare everything at one decision; False where the atom has no value."""
        place = self.place(x, self.rows)
        if place is None:
            return False
        check_rule(self.atom, self.operands, place.operands, place.values)
        if self.batched:
            check_rule(self.atom, *self._first_scenario(place))
        self.check_claims(place)
        if self.joint is None or not self.batched:
            return True
        degree = self.degrees(self.atom)
        if degree <= HIGHEST_DEGREE:
            self.check_degree(place, int(degree))
        if degree == 1:
            self.check_slopes(place)
        else:
            self.check_pieces(place)
        self.check_rewritten(place)
        self.check_far(place)
        return True

    def _first_scenario(self, place: Place) -> tuple[list[Operand], list[Array], Array]:
        """The operands of one scenario as if they did not depend on the data."""
        operands = [Operand(o.expression, False) for o in self.operands]
        values = [v[0] if o.batched else v for o, v in zip(self.operands, place.operands)]
        return operands, values, place.values[0]

    def check_rule_at_random_operands(self) -> None:
        """Compare the rule at operands around zero and one, wherever the data is."""
        if len(self.operands) != len(self.atom.args):
            return
        for centre in OPERAND_CENTRES:
            values = [
                centre + self.rng.uniform(-1, 1, ((3,) if o.batched else ()) + o.shape)
                for o in self.operands
            ]
            own = self.numeric(values)
            if own is not None and np.isfinite(own).all():
                check_rule(self.atom, self.operands, values, own)
                return

    def numeric(self, values: Sequence[Array]) -> Array | None:
        """The atom's own values at operands, scenario by scenario; None where it has none."""
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

    def check_kinds(self) -> None:
        """Ask every fact once; an error names the one that fails or gives something else."""
        if not self.batched or self.joint is None:
            return
        degrees = [self.degrees(read) for read in self.facts.reads(self.atom)]
        degree = self.ask("degree", degrees)
        if degree == 1 and type(self.facts).adjoints is not AtomFacts.adjoints:
            self.ask("adjoints")
            self.ask("constant_part", [None] * len(self.atom.args))
        self.ask("square")
        self.ask("far", list(self.atom.args))
        self.ask("terms", SumSplit(self.degrees))
        self.ask("factor", constant_number)
        self.ask("same_number")
        self.ask("times", 2.0, times)
        self.ask("rebuild", self.facts.reads(self.atom))

    def ask(self, fact: str, *given: Any) -> Any:
        """The answer of a fact of the atom, if it is of the kind that the library expects."""
        try:
            answer = getattr(self.facts, fact)(self.atom, *given)
        except (NoPieces, NoVectorForm, MissingRuleError, NotImplementedError):
            raise
        except Exception as error:
            declared = type(self.facts).__dict__.get(fact) or getattr(type(self.facts), fact)
            if getattr(declared, "__module__", "").startswith("wdro_model."):
                raise
            raise ValueError(
                f"the fact {fact} of the atom {self.name!r} fails: {type(error).__name__}: {error}"
            ) from error
        is_right, kind = KINDS[fact]
        if not is_right(answer):
            raise ValueError(
                f"the fact {fact} of the atom {self.name!r} must return {kind}; got "
                f"{_kind_of(answer)}."
            )
        return answer

    def check_claims(self, place: Place) -> None:
        """Compare an atom that is said to be homogeneous, or to act entry by entry."""
        if len(self.operands) != len(self.atom.args):
            return
        twice = self.numeric([2 * v for v in place.operands])
        if self.facts.is_homogeneous and twice is not None:
            gap = np.abs(twice - 2 * place.values)
            if (wrong := first_index(gap > TOLERANCES.value * np.abs(twice) + 1e-9)) is not None:
                raise ValueError(
                    f"the atom {self.name!r} is declared as is_homogeneous, but is "
                    f"{place.values[wrong]:.6g} at {self.operands_at(place, (*wrong, 0))} and "
                    f"{twice[wrong]:.6g} at twice that; leave the fact out."
                )
        if not self.facts.is_entrywise or self.atom.size == 1:
            return
        moved = [v.copy() for v in place.operands]
        for v in moved:
            v.reshape(*v.shape[: v.ndim - self.atom.ndim], -1)[..., 0] *= 1.5
        changed = self.numeric(moved)
        if changed is None:
            return
        flat = place.values.reshape(-1, self.atom.size)[:, 1:]
        change = np.abs(changed.reshape(-1, self.atom.size)[:, 1:] - flat)
        if (change > TOLERANCES.value * (1.0 + np.abs(flat))).any():
            raise ValueError(
                f"the atom {self.name!r} is known as is_entrywise (it is declared so, or derives "
                "from Elementwise), but another entry of its value changes with the first entry "
                "of its argument; declare is_entrywise = False."
            )

    def check_degree(self, place: Place, degree: int) -> None:
        """Compare differences of order degree + 1 along lines in the data with zero."""
        rows = place.rows
        if len(rows) < 2:
            return
        first = self.rng.integers(len(rows), size=LINE_COUNT)
        second = (first + self.rng.integers(1, len(rows), size=LINE_COUNT)) % len(rows)
        steps = np.linspace(0.0, 1.0, degree + 8)[None, :, None]
        start, end = rows[first, None], rows[second, None]
        along = (start + steps * (end - start)).reshape(-1, rows.shape[1])
        line = self.place(place.x, along)
        if line is None or len(line.rows) < len(along):
            return
        values = line.values.reshape(LINE_COUNT, degree + 8, -1)
        left = np.abs(np.diff(values, n=degree + 1, axis=1)).max(axis=1)
        size = 2.0**degree * np.abs(values).max(axis=(1, 2))[:, None]
        if (wrong := first_index(left > TOLERANCES.value * size)) is not None:
            k, entry = wrong
            raise ValueError(
                f"the atom {self.name!r} in '{brief(self.atom)}' is declared to have degree "
                f"{degree} in the data, but its differences of order {degree + 1} are not zero: "
                f"between {shown(start[k, 0])} and {shown(end[k, 0])} it has the values "
                f"{shown(values[k, :: max(1, (degree + 7) // 3), entry])}. Correct the fact "
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
        wrong = first_index(
            np.abs(claimed - own) > TOLERANCES.value * (1.0 + size + np.abs(claimed))
        )
        if wrong is not None:
            raise ValueError(
                f"the facts adjoints and constant_part of the atom {self.name!r} in "
                f"'{brief(self.atom)}' are not its slope and the rest: they make "
                f"{claimed[wrong]:.6g} of what is {own[wrong]:.6g} at the data "
                f"{shown(place.rows[wrong])}; correct them."
            )

    def check_pieces(self, place: Place) -> None:
        """Compare the maximum of the pieces with the atom, or with minus the atom."""
        entries = self.rng.permutation(self.atom.size)[:4]
        for entry, sign in ((int(e), sign) for e in entries for sign in (1, -1)):
            search = PieceSearch(self.degrees, 64)
            try:
                pieces = self.ask("pieces", sign, AtomEntry(search, self.atom, entry))
            except NoPieces:
                continue
            self._refuse_pieces(pieces)
            for k, row in enumerate(place.rows):
                with self.layout.holding(place.x), held_values(self._scenario(row)):
                    largest = max(float(np.reshape(piece.value, ())) for piece in pieces)
                value = sign * float(place.values[k].ravel(order="F")[entry])
                allowed = TOLERANCES.value * (1.0 + abs(value) + abs(largest))
                if abs(largest - value) > allowed:
                    raise ValueError(
                        f"the largest of the {len(pieces)} pieces of the atom {self.name!r} for "
                        f"the sign {sign} is {largest:.6g} where {'minus ' if sign < 0 else ''}"
                        f"the atom is {value:.6g}, at {self.operands_at(place, k)}; correct the "
                        "fact pieces(atom, sign, at), and raise NoPieces for a sign that has none."
                    )

    def _refuse_pieces(self, pieces: Sequence[Any]) -> None:
        whose = f"the pieces of the atom {self.name!r} hold"
        for piece in pieces:
            if piece.size != 1:
                raise ValueError(
                    f"{whose} '{brief(piece)}' of shape {piece.shape}, where each needs one entry; "
                    "take the entry that is asked for with at.part(argument)."
                )
            if self.degrees(piece) > 1:
                raise ValueError(
                    f"{whose} '{brief(piece)}', which is not affine in the data: its degree is "
                    f"{self.degrees(piece):g}; raise NoPieces where the atom is no maximum of "
                    "affine pieces."
                )

    def check_rewritten(self, place: Place) -> None:
        """Compare the expressions that stand for the atom with its values, summed over entries."""
        written = list(self._rewritten())
        for k, row in enumerate(place.rows):
            scenario = self._scenario(row)
            with self.layout.holding(place.x), held_values(scenario):
                here = [*written, ("rebuild", substitute(self.atom, scenario), 1.0)]
                sums = [(fact, factor, float(np.sum(e.value))) for fact, e, factor in here]
            own, size = float(place.values[k].sum()), float(np.abs(place.values[k]).sum())
            for fact, factor, claimed in sums:
                value = factor * own
                if abs(claimed - value) > TOLERANCES.value * (1.0 + 2 * size + abs(claimed)):
                    raise ValueError(
                        f"the fact {fact} of the atom {self.name!r} makes {claimed:.6g} of what "
                        f"is {value:.6g}, summed over its entries, at "
                        f"{self.operands_at(place, k)}; correct it."
                    )

    def _rewritten(self) -> Iterator[tuple[str, Any, float]]:
        """(fact, expression, factor): the entries of the expression add up to factor * atom's."""
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
        origins, moves = self._origins(self.joint), TOLERANCES.distance * self._moves(self.joint)
        rows = np.concatenate([origins + moves, origins + 2 * moves])
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
            claimed = np.asarray(forms[1].value) - np.asarray(forms[0].value)
            own = distant.values[count + k] - distant.values[k]
            size = max(float(np.max(np.abs(b - a), initial=0.0)) for a, b in zip(*ends))
            allowed = TOLERANCES.far_slope * np.maximum(np.abs(claimed), np.abs(own))
            wrong = first_index(np.abs(claimed - own) > allowed + TOLERANCES.value * size)
            if wrong is not None:
                raise ValueError(
                    f"the fact far of the atom {self.name!r} has another slope than the atom: "
                    f"from {self.operands_at(distant, k)} to "
                    f"{self.operands_at(distant, count + k)} it rises by "
                    f"{np.broadcast_to(claimed, own.shape)[wrong]:.6g}, the atom's numeric() by "
                    f"{own[wrong]:.6g}; correct one of them."
                )


def _spread(joint: JointSamples) -> Array:
    """The standard deviation of each coordinate; its size where that is zero."""
    rows = joint.matrix
    spread = rows.std(axis=0)
    return np.where(spread > 0, spread, np.maximum(np.abs(rows).max(axis=0), 1.0))


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
        at = ", ".join(shown(v[k] if o.batched else v) for o, v in zip(operands, values))
        raise ValueError(
            f"the rule of the atom {name!r} gives {value[wrong]:.6g} where its numeric() gives "
            f"{expected[wrong]:.6g}, at the operands {at}; correct one of them."
        )
    rng = np.random.default_rng(1)
    weights = rng.uniform(0.5, 1.5, expected.shape)
    for k, operand in enumerate(values):
        move = rng.uniform(0.5, 1.5, operand.shape) * (1.0 + np.abs(operand))
        slope, shape = _pulled_slope(name, k, result[k + 1], weights, operand, move)
        low, high = _slopes_to_both_sides(kernel, k, values, weights, move)
        noise = 1e-14 * float(np.sum(np.abs(weights * expected))) / TOLERANCES.step
        allowed = TOLERANCES.slope * (1.0 + abs(low + high) / 2) + noise
        if np.isfinite([low, high]).all() and not low - allowed <= slope <= high + allowed:
            kept = shape in (operand.shape, (*expected.shape[:1], *operand.shape))
            raise ValueError(
                f"the pullback of operand {k} in the rule of the atom {name!r} is not the "
                f"derivative of its value: {slope:.6g} against differences of "
                f"{(low + high) / 2:.6g}"
                + ("." if kept else f"; its shape is {shape}, the operand's {operand.shape}.")
            )


def _call(name: str, kernel: Callable[..., Any], values: Sequence[Array]) -> tuple[Any, ...]:
    """The value and the pullbacks; an error that names the rule if they are something else."""
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
    name: str, k: int, pullback: Callable[[Array], Any], weights: Array, operand: Array, move: Array
) -> tuple[float, tuple[int, ...]]:
    """The slope along a move by the pullback, and the shape of what the pullback returned."""
    shape: Any = None
    try:
        pulled = np.asarray(pullback(weights), dtype=float)
        shape = pulled.shape
        pulled = pulled.sum(axis=0) if pulled.ndim > operand.ndim else pulled
        return float(np.sum(np.broadcast_to(pulled, operand.shape) * move)), shape
    except Exception as error:
        why = error if shape is None else f"its answer has the shape {shape}"
        raise ValueError(
            f"the pullback of operand {k} in the rule of the atom {name!r} fails: {why}; it takes "
            f"an array of the value's shape, {weights.shape}, and returns one of the operand's, "
            f"{operand.shape}."
        ) from error


def _slopes_to_both_sides(
    kernel: Callable[..., Any], k: int, values: Sequence[Array], weights: Array, move: Array
) -> tuple[float, float]:
    """Difference quotients of weights * value ahead and back: at a kink they differ."""

    def total(step: float) -> float:
        moved = [v + step * move if j == k else v.copy() for j, v in enumerate(values)]
        try:
            return float(np.sum(weights * np.asarray(kernel(*moved)[0])))
        except OUTSIDE_DOMAIN:
            return np.nan

    step, here = TOLERANCES.step, total(0.0)
    quotients = (total(step) - here) / step, (here - total(-step)) / step
    return min(quotients), max(quotients)


# ------------------------------------------------------------------ what a fact returns
def _is_expression(answer: Any) -> bool:
    return isinstance(answer, cp.Expression)


def _is_expression_or_none(answer: Any) -> bool:
    return answer is None or _is_expression(answer)


def _are_expressions(answer: Any) -> bool:
    return (
        isinstance(answer, (list, tuple)) and len(answer) > 0 and all(map(_is_expression, answer))
    )


def _is_factor(answer: Any) -> bool:
    return answer is None or (
        len(answer) == 2 and isinstance(answer[0], Real) and _is_expression(answer[1])
    )


EXPRESSION = (_is_expression, "a CVXPY expression")
KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "degree": (
        lambda answer: isinstance(answer, Real) and float(answer) >= 0.0,
        "a number, 0, 1, 2, ... or math.inf",
    ),
    "adjoints": (
        lambda answer: isinstance(answer, Sequence) and all(map(callable, answer)),
        "a list with one function for each argument",
    ),
    "constant_part": (_is_expression_or_none, "a CVXPY expression, or None for zero"),
    "pieces": (
        _are_expressions,
        "a list of CVXPY expressions, one at least (raise NoPieces where there are none)",
    ),
    "terms": (
        lambda answer: answer is None or _are_expressions(answer),
        "a list of CVXPY expressions, or None for the atom itself",
    ),
    "factor": (_is_factor, "(number, CVXPY expression), or None"),
    "square": (
        lambda answer: answer is None or (_are_expressions(answer) and len(answer) == 2),
        "(u, t), two CVXPY expressions such as (v, cp.Constant(1)), or None",
    ),
    "same_number": (_is_expression_or_none, "a CVXPY expression, or None"),
    "rebuild": EXPRESSION,
    "times": EXPRESSION,
    "far": (
        _is_expression_or_none,
        "a CVXPY expression, written with CVXPY's functions, or None for the atom itself",
    ),
}
"""For each fact a test of its answer, and the answer's kind in words."""


def _kind_of(answer: Any) -> str:
    """The type of an answer for a message, with the types inside of a list or tuple."""
    if isinstance(answer, (list, tuple)):
        return f"[{', '.join(type(entry).__name__ for entry in answer)}]"
    return repr(answer) if answer is None or isinstance(answer, Real) else type(answer).__name__


# ------------------------------------------------------------------ small parts
def first_index(wrong: Any) -> tuple[int, ...] | None:
    """The index of the first True entry, None if there is none."""
    wrong = np.asarray(wrong)
    return tuple(map(int, np.argwhere(wrong)[0])) if wrong.any() else None


def shown(value: Any) -> str:
    """An array in one line, shortened to fit a message."""
    return " ".join(np.array2string(np.asarray(value), precision=4, threshold=6).split())


def _shapes(values: Sequence[Array]) -> str:
    return ", ".join(str(v.shape) for v in values)


@contextmanager
def held_values(values: Mapping[Any, Array]) -> Iterator[None]:
    """Give parameters these values inside the block, and their own after it."""
    before = {p: p.value for p in values}
    try:
        for parameter, value in values.items():
            parameter.save_value(np.array(value))
        yield
    finally:
        for parameter, own in before.items():
            parameter.save_value(own)
