"""Are atoms that a user declared what their facts say, at the data of the loss?

A rule that forgets a branch, a degree that is too low or a piece that is missing give a wrong
answer which is called optimal. At some samples, moved samples and decisions each such atom is held
against its own `numeric`: its rule and pullbacks; its degree, by differences along lines in the
data; its slopes, its pieces and its form far away, by their values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.loss.affine_pieces import pieces_of
from wdro_model.loss.atoms.checks import UNKNOWN, hold_rule, numeric, shown
from wdro_model.loss.atoms.facts import AtomFacts, Operand, brief, facts_of, is_foreign
from wdro_model.loss.batched import BatchedLoss, Layout, TapeStep, dense_value, lower
from wdro_model.loss.expressions import as_scalar, constant_number, substitute, times
from wdro_model.loss.polynomial import Degrees, affine_parts
from wdro_model.uncertainty.joint import JointSamples

Array = np.ndarray

SAMPLES, MOVED = 8, 8
"""Rows that atoms are held at: samples, the extreme ones among them, and moved ones."""
MOVES = (1.0, 4.0, 10.0)
"""How far samples are moved, in standard deviations."""
FAR = 1e6
"""The same for forms far away."""
LINES, HIGHEST = 12, 6
"""Segments between rows that degrees are tested on, and the highest degree that is."""
ENTRIES = 4
"""Entries of an atom whose pieces are tested."""
CLOSE = 1e-6
"""Relative differences that are rounding."""


class FactsAtData:
    """The atoms of a loss that are not the library's, and where they are looked at."""

    def __init__(
        self, loss: BatchedLoss, layout: Layout, joint: JointSamples | None, free: Array | None
    ) -> None:
        """free: which coordinates of the data may move."""
        self.loss, self.layout, self.joint, self.free = loss, layout, joint, free
        self.tape = lower(loss.expression, loss.parameters)
        self.degrees = Degrees(loss.parameters)
        self.rng = np.random.default_rng(0)

    def refuse_false(self, x: Array | None = None) -> None:
        """Raise a ValueError that names the atom, the place and both values.

        x: the decision; by default some of order one.
        """
        uncertain = {p.id for p in self.loss.parameters}
        certain = [p for p in self.loss.expression.parameters() if p.id not in uncertain]
        if any(p.value is None for p in certain):
            return  # it is looked at once they have values
        with np.errstate(all="ignore"):
            for decision in self.decisions() if x is None else [x]:
                with self.layout.holding(decision):
                    self.at(decision)

    def at(self, x: Array) -> None:
        """The same at one decision."""
        rows = self.rows
        place = Place(self, x, rows)
        if not place.evaluate(hold=True):
            return
        for step in place.foreign:
            atom = place.tape.nodes[step.output].expression
            place.check_claims(atom, step)
            if not place.tape.nodes[step.output].batched:
                continue
            known, facts = self.degrees(atom), type(facts_of(atom))
            if known <= HIGHEST:
                self.check_degree(x, atom, step, int(known))
            if known == 1 and facts.adjoints is not AtomFacts.adjoints:
                place.check_slopes(atom, step)
            if known > 1 and facts.pieces is not AtomFacts.pieces:
                place.check_pieces(atom, step)
            place.check_rewritten(atom, step)
            if facts.far is not AtomFacts.far and len(step.inputs) == len(atom.args):
                self.check_far(x, atom, step)

    # -------------------------------------------------------------- where
    def decisions(self) -> list[Array]:
        """Some decisions of order one, and of that of the data, with the attributes they need."""
        unit = 1.0 if self.joint is None else float(np.median(self.spread))
        normal = self.rng.normal(size=(3, self.layout.dimension))
        return [self.projected(x) for x in (normal[0], np.abs(normal[1]), unit * normal[2])]

    def projected(self, x: Array) -> Array:
        found = {}
        for variable, value in self.layout.split(x).items():
            projected = variable.project(value)
            if projected.shape == value.shape:
                found[variable] = projected
        return self.layout.join(found)

    @cached_property
    def spread(self) -> Array:
        """The standard deviation of each coordinate; its size where that is zero."""
        assert self.joint is not None
        rows = self.joint.matrix
        spread = rows.std(axis=0)
        return np.where(spread > 0, spread, np.maximum(np.abs(rows).max(axis=0), 1.0))

    @cached_property
    def rows(self) -> Array:
        """Some samples, the extreme ones among them, and moved ones in the support."""
        if self.joint is None:
            return np.zeros((1, 0))
        data = self.joint.matrix
        length = np.linalg.norm(data / self.spread, axis=1)
        chosen = [int(length.argmax()), int(length.argmin())]
        for i in range(min(2, data.shape[1])):
            chosen += [int(data[:, i].argmax()), int(data[:, i].argmin())]
        others = self.rng.permutation(len(data))[:SAMPLES].tolist()
        samples = data[list(dict.fromkeys(chosen + others))[:SAMPLES]]
        origins = data[self.rng.integers(len(data), size=MOVED)]
        scale = np.resize(MOVES, MOVED)[:, None]
        return np.concatenate([samples, self.moved(origins, scale)])

    def moved(self, origins: Array, scale: Any) -> Array:
        """Rows moved at random by some standard deviations, those that are in the support."""
        assert self.joint is not None
        rows = origins + scale * self.directions(len(origins))
        return rows[self.joint.contains(rows)]

    def directions(self, count: int) -> Array:
        """Random moves of one standard deviation."""
        return self.rng.normal(size=(count, len(self.spread))) * self.spread * self.free

    # -------------------------------------------------------------- facts that need other rows
    def check_degree(self, x: Array, atom: Any, step: TapeStep, known: int) -> None:
        """Differences of order degree + 1 vanish along lines in the data."""
        rows = self.rows
        if len(rows) < 2:
            return
        first = self.rng.integers(len(rows), size=LINES)
        second = (first + self.rng.integers(1, len(rows), size=LINES)) % len(rows)
        steps = np.linspace(0.0, 1.0, known + 8)[None, :, None]
        start, end = rows[first, None], rows[second, None]
        line = Place(self, x, (start + steps * (end - start)).reshape(-1, rows.shape[1]))
        if not line.evaluate() or line.dropped:
            return
        values = line.values[step.output].reshape(LINES, known + 8, -1)
        left = np.abs(np.diff(values, n=known + 1, axis=1)).max(axis=1)
        size = 2.0**known * np.abs(values).max(axis=(1, 2))[:, None]
        wrong = np.argwhere(left > CLOSE * size)
        if not len(wrong):
            return
        k, entry = map(int, wrong[0])
        raise ValueError(
            f"the atom {type(atom).__name__!r} in '{brief(atom)}' is declared to have degree "
            f"{known} in the data, but its differences of order {known + 1} are not zero: between "
            f"{shown(start[k, 0])} and {shown(end[k, 0])} it has the values "
            f"{shown(values[k, :: max(1, (known + 7) // 3), entry])}. Correct the fact "
            "degree(atom, degrees); math.inf is no polynomial."
        )

    def check_far(self, x: Array, atom: Any, step: TapeStep) -> None:
        """Its slopes far away are those of the form that is declared."""
        assert self.joint is not None
        origins = self.joint.matrix[self.rng.integers(self.joint.size, size=MOVED)]
        directions = FAR * self.directions(MOVED)
        rows = np.concatenate([origins + directions, origins + 2 * directions])
        inside = self.joint.contains(rows).reshape(2, -1).all(axis=0)
        place = Place(self, x, rows[np.tile(inside, 2)])
        if not inside.any() or not place.evaluate() or place.dropped:
            return
        count = int(inside.sum())
        for k in range(count):
            near, distant = place.operands_at(step, k), place.operands_at(step, count + k)
            written = [_far_value(atom, values) for values in (near, distant)]
            if written[0] is None or written[1] is None:
                return
            claimed = written[1] - written[0]
            found = place.values[step.output][count + k] - place.values[step.output][k]
            size = max(float(np.max(np.abs(b - a), initial=0.0)) for a, b in zip(near, distant))
            allowed = 1e-3 * np.maximum(np.abs(claimed), np.abs(found)) + CLOSE * size
            wrong = np.argwhere(np.abs(claimed - found) > allowed)
            if len(wrong):
                at = tuple(map(int, wrong[0]))
                raise ValueError(
                    f"the fact far of the atom {type(atom).__name__!r} has another slope than the "
                    f"atom: from {', '.join(map(shown, near))} to "
                    f"{', '.join(map(shown, distant))} it rises by {claimed[at]:.6g}, the atom's "
                    f"numeric() by {found[at]:.6g}; correct one of them."
                )


def _far_value(atom: Any, values: list[Array]) -> Array | None:
    arguments = [cp.Constant(value) for value in values]
    written = facts_of(atom).far(atom, arguments)
    if written is None:
        return None
    return np.broadcast_to(np.asarray(written.value, dtype=float), atom.shape)


@dataclass
class Place:
    """A loss at a decision and some rows, value by value."""

    whose: FactsAtData
    x: Array
    rows: Array
    dropped: bool = False
    """Were there rows outside the domain of an atom?"""

    def __post_init__(self) -> None:
        self.tape = self.whose.tape
        self.values: list[Any] = [None] * len(self.tape.nodes)

    @property
    def foreign(self) -> list[TapeStep]:
        """Steps by atoms of the user, arguments first."""
        nodes = self.tape.nodes
        return [step for step in self.tape.steps if is_foreign(nodes[step.output].expression)]

    def evaluate(self, hold: bool = False) -> bool:
        """All values, rows outside the domain dropped; False where there are none.

        hold: the rules of the user's atoms are held against the atoms.
        """
        whose, nodes = self.whose, self.tape.nodes
        given: dict[Any, Any] = dict(whose.layout.split(self.x))
        if whose.joint is not None:
            given |= whose.joint.split(self.rows)
        for kind in (cp.Variable, cp.Parameter):
            for leaf, slot in self.tape.slots_of(kind).items():
                self.values[slot] = np.asarray(given[leaf], dtype=float)
        for slot, node in enumerate(nodes):
            if node.certain:
                self.values[slot] = dense_value(node.expression)
        for step in self.tape.steps:
            atom = nodes[step.output].expression
            foreign = is_foreign(atom) and len(step.inputs) == len(atom.args)
            if foreign and not self.in_domain(atom, step):
                return False
            try:
                found = np.asarray(step.kernel(*self.operands(step))[0], dtype=float)
            except UNKNOWN:
                if foreign and hold:
                    raise
                return False
            self.values[step.output] = found
            if foreign and hold:
                self.hold(atom, step)
        return True

    def operands(self, step: TapeStep) -> list[Array]:
        return [np.array(self.values[slot], dtype=float) for slot in step.inputs]

    def operands_at(self, step: TapeStep, row: int) -> list[Array]:
        """Those of one row."""
        nodes = self.tape.nodes
        return [
            np.asarray(self.values[slot][row] if nodes[slot].batched else self.values[slot])
            for slot in step.inputs
        ]

    def kinds(self, step: TapeStep) -> list[Operand]:
        nodes = self.tape.nodes
        return [Operand(nodes[slot].expression, nodes[slot].batched) for slot in step.inputs]

    def in_domain(self, atom: Any, step: TapeStep) -> bool:
        """Keep the rows where the atom itself has a value; False if there are none."""
        try:
            own = numeric(atom, self.kinds(step), self.operands(step))
        except UNKNOWN:
            return False
        finite = np.isfinite(own)
        if not self.tape.nodes[step.output].batched:
            return bool(finite.all())
        kept = finite.reshape(len(own), -1).all(axis=1)
        if not kept.all():
            self.dropped = True
            self.rows = self.rows[kept]
            for slot, node in enumerate(self.tape.nodes):
                if node.batched and self.values[slot] is not None:
                    self.values[slot] = self.values[slot][kept]
        return bool(kept.any())

    def hold(self, atom: Any, step: TapeStep) -> None:
        kinds, operands = self.kinds(step), self.operands(step)
        hold_rule(atom, kinds, step.kernel, operands, numeric(atom, kinds, operands))

    # -------------------------------------------------------------- what is declared
    def check_claims(self, atom: Any, step: TapeStep) -> None:
        """Is it homogeneous, does it act entry by entry, if so declared?"""
        facts, name = facts_of(atom), type(atom).__name__
        if len(step.inputs) != len(atom.args):
            return
        kinds, operands = self.kinds(step), self.operands(step)
        own = numeric(atom, kinds, operands)
        if facts.is_homogeneous:
            twice = numeric(atom, kinds, [2 * v for v in operands])
            wrong = np.argwhere(np.abs(twice - 2 * own) > CLOSE * np.abs(twice) + 1e-9)
            if len(wrong):
                at = tuple(map(int, wrong[0]))
                raise ValueError(
                    f"the atom {name!r} is declared as is_homogeneous, but is {own[at]:.6g} at "
                    f"{self.shown(step, at)} and {twice[at]:.6g} at twice that; leave the fact out."
                )
        if facts.is_entrywise and atom.size > 1:
            moved = [v.copy() for v in operands]
            for v in moved:
                v.reshape(*v.shape[: v.ndim - len(atom.shape)], -1)[..., 0] *= 1.5
            change = (numeric(atom, kinds, moved) - own).reshape(-1, atom.size)[:, 1:]
            size = 1.0 + np.abs(own).reshape(-1, atom.size)[:, 1:]
            if (np.abs(change) > CLOSE * size).any():
                raise ValueError(
                    f"the atom {name!r} is known as is_entrywise (it is declared so, or derives "
                    "from Elementwise), but another entry of its value changes with the first "
                    "entry of its argument; declare is_entrywise = False."
                )

    def shown(self, step: TapeStep, at: tuple[int, ...]) -> str:
        """The operands at an entry of the atom's value."""
        batched = self.tape.nodes[step.output].batched
        return ", ".join(map(shown, self.operands_at(step, at[0] if batched else 0)))

    def check_slopes(self, atom: Any, step: TapeStep) -> None:
        """constant_part and adjoints give its values, where it is affine in the data."""
        weights = self.whose.rng.uniform(0.5, 1.5, atom.shape)
        parameters = self.whose.loss.parameters
        try:
            parts = affine_parts(cp.sum(cp.multiply(weights, atom)), parameters)
        except ValueError:
            return  # an atom inside has no adjoints: an error where they are needed
        assert self.whose.joint is not None
        values = self.whose.joint.split(self.rows)
        claimed = np.full(len(self.rows), float(parts.constant.value))
        for p in parameters:
            claimed += (values[p] * dense_value(parts.slopes[p])).reshape(len(claimed), -1).sum(1)
        found = (weights * self.values[step.output]).reshape(len(claimed), -1).sum(axis=1)
        size = np.abs(weights * self.values[step.output]).reshape(len(claimed), -1).sum(axis=1)
        wrong = np.flatnonzero(np.abs(claimed - found) > CLOSE * (1.0 + size + np.abs(claimed)))
        if len(wrong):
            k = int(wrong[0])
            raise ValueError(
                f"the facts adjoints and constant_part of the atom {type(atom).__name__!r} in "
                f"'{brief(atom)}' are not its slope and the rest: they make {claimed[k]:.6g} of "
                f"what is {found[k]:.6g} at the data {shown(self.rows[k])}; correct them."
            )

    def check_rewritten(self, atom: Any, step: TapeStep) -> None:
        """What the atom is written as otherwise has its values, summed over its entries."""
        assert self.whose.joint is not None
        written = list(_rewritten(atom))
        rewrites = type(facts_of(atom)).replaced is not AtomFacts.replaced
        for k, row in enumerate(self.rows if written or rewrites else ()):
            values = {p: v[0] for p, v in self.whose.joint.split(row[None]).items()}
            with held_values(values):
                here = [*written, ("replaced", substitute(atom, values), 1.0)]
                totals = [(name, factor, float(np.sum(e.value))) for name, e, factor in here]
            own = self.values[step.output][k]
            for name, factor, claimed in totals:
                value, size = factor * float(np.sum(own)), float(np.sum(np.abs(own)))
                if abs(claimed - value) > CLOSE * (1.0 + 2 * size + abs(claimed)):
                    raise ValueError(
                        f"the fact {name} of the atom {type(atom).__name__!r} makes "
                        f"{claimed:.6g} of what is {value:.6g}, summed over its entries, at "
                        f"{self.shown(step, (k,))}; correct it."
                    )

    def check_pieces(self, atom: Any, step: TapeStep) -> None:
        """The maximum of its pieces is the atom, or minus it."""
        entries = self.whose.rng.permutation(atom.size)[:ENTRIES]
        own = self.values[step.output].reshape(len(self.rows), *atom.shape)
        asked = [(int(entry), sign) for entry in entries for sign in (1, -1)]
        written = [(*a, pieces_of(atom, self.whose.degrees, *a)) for a in asked]
        assert self.whose.joint is not None
        for k, row in enumerate(self.rows):
            values = {p: v[0] for p, v in self.whose.joint.split(row[None]).items()}
            with held_values(values):
                for entry, sign, pieces in written:
                    if pieces is None:
                        continue
                    largest = max(float(np.reshape(piece.value, ())) for piece in pieces)
                    value = sign * float(own[k].ravel(order="F")[entry])
                    if abs(largest - value) > CLOSE * (1.0 + abs(value) + abs(largest)):
                        minus = "minus " if sign < 0 else ""
                        raise ValueError(
                            f"the largest of the {len(pieces)} pieces of the atom "
                            f"{type(atom).__name__!r} for the sign {sign} is {largest:.6g} where "
                            f"{minus}the atom is {value:.6g}, at {self.shown(step, (k,))}; correct "
                            "the fact pieces(atom, sign, at), and raise NoPieces for a sign that "
                            "has none."
                        )


def _rewritten(atom: Any) -> Iterator[tuple[str, Any, float]]:
    """(fact, expression, factor): sums of entries that are factor times that of the atom."""
    facts = facts_of(atom)
    if (square := facts.square(atom)) is not None:
        yield "square", cp.sum_squares(square[0]) / as_scalar(square[1]), 1.0
    if (terms := facts.terms(atom, lambda argument: [argument])) is not None:
        yield "terms", sum(cp.sum(term) for term in terms), 1.0
    if (factor := facts.factor(atom, constant_number)) is not None:
        yield "factor", factor[0] * factor[1], 1.0
    if (same := facts.same_number(atom)) is not None:
        yield "same_number", same, 1.0
    if type(facts).times is not AtomFacts.times:
        yield "times", facts.times(atom, 2.0, times), 2.0


@contextmanager
def held_values(values: Mapping[Any, Array]) -> Iterator[None]:
    """Parameters have these values inside the block, and after it their own."""
    before = {p: p.value for p in values}
    try:
        for parameter, value in values.items():
            parameter.save_value(np.array(value))
        yield
    finally:
        for parameter, own in before.items():
            parameter.save_value(own)
