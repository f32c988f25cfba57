"""The parts of a problem, each checked: objective, risk measures, constraints, ball and labels.

A CVaR is a minimum over a threshold (Rockafellar and Uryasev):

    cvar(g, a) = min over t of  t + E (g - t)_+ / (1 - a).

The function of t is convex in t and linear in the distribution, so the worst case over a ball and
the minimum may change places: the worst case of a sum of measures is one expected loss, minimised
over the thresholds beside the decision.

Coordinates that meet in an expression must have the same labels. The columns of uncertain data have
labels, and so have the coordinates of a decision in a set of edges, pairs or items. Where the two
are added, multiplied or compared entry by entry, an entry goes with the one at its position:
another order of the labels would be a wrong answer without a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.atoms.elementwise.elementwise import Elementwise
from cvxpy.transforms.partial_optimize import PartialProblem

from wdro_model.loss import BatchedLoss, CallableLoss
from wdro_model.loss.atoms import cvxpy_classes as atoms
from wdro_model.loss.atoms.facts import brief
from wdro_model.loss.atoms.risk import Probability, RiskMeasure, Threshold, is_uncertain
from wdro_model.loss.batched import FlatLoss, Layout
from wdro_model.loss.expressions import Walk, entry_of, weighted
from wdro_model.loss.polynomial import affine_parts, degree
from wdro_model.sets import FeasibleSet, In
from wdro_model.uncertainty.ambiguity import WassersteinBall
from wdro_model.uncertainty.joint import JointSamples
from wdro_model.uncertainty.parameter import UncertainParameter
from wdro_model.uncertainty.samples import is_numbering, listed

Array = np.ndarray
WAY_OUT = (
    "write z = cp.Variable(), the constraint {measure} <= z, and z in its place (an epigraph "
    "variable)"
)


@dataclass(frozen=True, eq=False)
class Tail:
    """A number whose CVaR counts, with its threshold."""

    loss: BatchedLoss
    level: float
    weight: Any
    """The factor of the CVaR, a certain expression of one entry."""
    threshold: Threshold
    entry: int
    """Its place in the threshold, row by row."""
    text: str
    """The measure as it was written."""


@dataclass(frozen=True, eq=False)
class Tails:
    """The CVaRs of an objective, by which decisions are judged rather than by a mean."""

    plain: BatchedLoss
    """The objective with each measure replaced by its loss."""
    parts: tuple[Tail, ...]

    @property
    def thresholds(self) -> tuple[Threshold, ...]:
        return tuple(dict.fromkeys(part.threshold for part in self.parts))

    def losses(self, layout: Layout, joint: JointSamples | None, x: Array, rows: Array) -> Array:
        """The plain loss and that of each part at each scenario, (B, 1 + K)."""
        losses = [self.plain, *(part.loss for part in self.parts)]
        return np.column_stack([FlatLoss(loss, layout, joint).values(x, rows) for loss in losses])

    def quantiles(self, losses: Array, weights: Array | None = None) -> Array:
        """The thresholds (K,) at which the CVaRs of these losses are attained."""
        return np.array(
            [quantile(g, part.level, weights) for g, part in zip(losses.T[1:], self.parts)]
        )

    def contributions(self, losses: Array, weights: Array | None = None) -> Array:
        """The contribution of each scenario to the risk, (B,); their mean is the objective.

        It is the plain loss with t + (g - t)_+ / (1 - level) in place of each g, at its quantile.
        """
        contributions = losses[:, 0].copy()
        for g, t, part in zip(losses.T[1:], self.quantiles(losses, weights), self.parts):
            tail = t + np.maximum(g - t, 0.0) / (1.0 - part.level)
            contributions += float(np.reshape(part.weight.value, ())) * (tail - g)
        return contributions

    def placed(self, layout: Layout, x: Array, thresholds: Array) -> Array:
        """The flat decision with these thresholds."""
        x = np.array(x, dtype=float)
        for part, t in zip(self.parts, thresholds):
            x[layout.slices[part.threshold].start + part.entry] = t
        return x

    def describe(self) -> str:
        """The measures, for people."""
        return ", ".join(dict.fromkeys(part.text for part in self.parts))


def quantile(losses: Array, level: float, weights: Array | None = None) -> float:
    """The smallest loss that a share of at least `level` of them does not exceed."""
    order = np.argsort(losses, kind="stable")
    shares = np.full(len(losses), 1.0 / len(losses)) if weights is None else weights[order]
    reached = np.cumsum(shares)
    # Sums of equal shares are rounded: 0.9 of ten losses are nine of them.
    first = int(np.searchsorted(reached, level * reached[-1] * (1 - 1e-12)))
    return float(losses[order[min(first, len(losses) - 1)]])


# ------------------------------------------------------------------ lowering
@dataclass(frozen=True, eq=False)
class Lowered:
    """An expression of one entry whose risk measures were replaced."""

    expression: Any
    """The expected loss to minimise: each CVaR with its threshold."""
    tails: Tails | None = None
    """The CVaRs; None where there are none."""
    measures: tuple[RiskMeasure, ...] = ()
    """The measures that were replaced."""
    outside: Any = None
    """The expression with variables in place of the measures."""


def subexpressions(roots: Iterable[Any]) -> Iterator[Any]:
    """Expressions and all that is in them, each once."""
    waiting, seen = list(roots), set[int]()
    while waiting:
        expression = waiting.pop()
        if id(expression) not in seen:
            seen.add(id(expression))
            yield expression
            waiting += expression.args


def lowered(expression: Any, what: str) -> Lowered:
    """An expression of one entry with its risk measures replaced.

    what: where it stands, for messages.
    """
    holes = _Holes()
    outside = holes(expression)
    if not holes.measures:
        return Lowered(expression, outside=expression)
    slopes = _slopes(outside, holes.measures, what)
    if any(_is_sparse(slope) for slope in slopes.values()):
        some = _entries_that_count(outside, holes.measures, slopes)
        return replace(lowered(some, what), outside=outside)
    replaced: dict[int, Any] = {}
    plain: dict[int, Any] = {}
    parts: list[Tail] = []
    for hole, measure in holes.measures.items():
        loss = measure.args[0]
        # `replaced` has t + (g - t)_+ / (1 - level) in place of a CVaR, `plain` the loss g itself.
        plain[id(hole)] = replaced[id(hole)] = loss
        if measure.level == 0 or not is_uncertain(loss):
            continue
        t = Threshold(loss.shape, name="threshold")
        replaced[id(hole)] = t + cp.pos(loss - t) / (1.0 - measure.level)
        for entry, where in enumerate(np.ndindex(*loss.shape)):
            # Thresholds count entries row by row, CVXPY's flat vectors column by column.
            column = int(np.ravel_multi_index(where, loss.shape, order="F")) if where else 0
            g, weight = entry_of(loss, column), entry_of(slopes[hole], column)
            parts.append(Tail(BatchedLoss(g), measure.level, weight, t, entry, brief(measure)))
    judged = outside.tree_copy(plain)
    tails = Tails(BatchedLoss(judged), tuple(parts)) if parts else None
    measures = tuple(holes.measures.values())
    return Lowered(outside.tree_copy(replaced), tails, measures, outside)


def _is_sparse(slope: Any) -> bool:
    """Are some entries of a measure multiplied by 0, as in one row of a vector?"""
    return (
        slope.size > 1
        and slope.is_constant()
        and not slope.parameters()
        and not np.all(slope.value)
    )


def _entries_that_count(
    outside: Any, measures: dict[cp.Variable, RiskMeasure], slopes: dict[Any, Any]
) -> Any:
    """The same sum of measures of single entries, without those that are multiplied by 0."""
    total = affine_parts(outside, list(measures)).constant
    for hole, measure in measures.items():
        for column in range(hole.size):
            slope = entry_of(slopes[hole], column)
            if slope.variables() or slope.parameters() or slope.value:
                single = RiskMeasure(entry_of(measure.args[0], column), *measure.get_data())
                total = total + weighted(slope, single)
    return total


class _Holes(Walk):
    """The expression with a variable in the place of each risk measure."""

    def __init__(self) -> None:
        super().__init__()
        self.measures: dict[cp.Variable, RiskMeasure] = {}

    def visit(self, expression: Any) -> Any:
        if not isinstance(expression, RiskMeasure):
            return super().visit(expression)
        hole = cp.Variable(expression.shape)
        self.measures[hole] = expression
        return hole


def _slopes(outside: Any, measures: dict[cp.Variable, RiskMeasure], what: str) -> dict[Any, Any]:
    """The factor of each measure; a ValueError where a measure is not a term of a sum."""
    first = next(iter(measures.values()))
    if degree(outside, list(measures)) > 1:
        raise ValueError(
            f"{what} is no sum of nonnegative multiples of risk measures and of other terms: "
            f"{brief(first)} stands inside another function (a square, a maximum, a product); "
            f"{WAY_OUT.format(measure=brief(first))}."
        )
    slopes = affine_parts(outside, list(measures)).slopes
    for hole, measure in measures.items():
        _check_slope(measure, slopes[hole], what)
    return slopes


def _check_slope(measure: RiskMeasure, slope: Any, what: str) -> None:
    """A measure is multiplied by certain numbers; a CVaR by nonnegative ones."""
    if is_uncertain(slope):
        raise ValueError(
            f"{what} has {brief(measure)} times the uncertain {brief(slope)}; a risk measure is a "
            "number, and uncertain factors belong inside of it."
        )
    if measure.level == 0:  # linear in the loss: anything certain will do
        return
    if slope.variables():
        raise ValueError(
            f"{what} has {brief(measure)} times {brief(slope)}, which is not convex; multiply it "
            "by a number or a certain cp.Parameter(nonneg=True)."
        )
    if not slope.is_nonneg():
        known = slope.value is not None and not slope.parameters()
        factor = f"{float(np.min(slope.value)):g}" if known else brief(slope)
        raise ValueError(
            f"{what} has {brief(measure)} times {factor}, and only nonnegative multiples of a CVaR "
            "are minimised or bounded from above: the other way round it is not convex. Turn the "
            "sign (cp.Maximize(reward - 2 * cvar(-reward, 0.9)) has the risk of the loss -reward); "
            "a factor that is a cp.Parameter is declared nonneg=True."
        )


# ------------------------------------------------------------------ checks of the parts
def compiled_loss(objective: Any) -> tuple[BatchedLoss | CallableLoss, Tails | None]:
    """The loss of an objective, minus a reward that is maximised, and its CVaRs."""
    if isinstance(objective, CallableLoss):
        return objective, None
    if not isinstance(objective, (cp.Minimize, cp.Maximize)):
        raise ValueError(
            f"the objective must be cp.Minimize(loss), cp.Maximize(reward) or a CallableLoss, got "
            f"{type(objective).__name__}; wrap the expression in cp.Minimize(...)."
        )
    refuse_partial(objective.args, "the loss")
    refuse_nan(objective, "the loss")
    refuse_vector_cvar(objective.expr)
    loss = objective.expr
    if isinstance(objective, cp.Maximize):  # cp.Maximize(-loss) has the loss as it was written
        loss = loss.args[0] if isinstance(loss, atoms.NEGATE) else -loss
    result = lowered(loss, "the objective")
    for measure in result.measures:
        if measure.ambiguity is not None:
            raise ValueError(
                f"{brief(measure)} has a ball of its own in the objective, whose terms share that "
                f"of the problem; leave ambiguity= out, or {WAY_OUT.format(measure=measure)}."
            )
    return BatchedLoss(result.expression), result.tails


def refuse_vector_cvar(expression: Any) -> None:
    """CVXPY's CVaR of the entries of a vector is no CVaR of the loss over the data."""
    for atom in subexpressions([expression]):
        if not isinstance(atom, atoms.SUM_LARGEST) or atom.args[0].size > 1:
            continue
        if any(isinstance(p, UncertainParameter) for p in atom.parameters()):
            raise ValueError(
                "cp.cvar and cp.sum_largest look at the entries of one vector, not at the "
                f"distribution of the data, and {atom.args[0]} has one entry; for the CVaR of a "
                "loss at level 0.95 write wdro_model.cvar(loss, 0.95)."
            )


def refuse_partial(parts: Sequence[Any], what: str) -> None:
    """The minimum over some of the variables, as CVXPY's partial_optimize has it, is no atom."""
    if any(isinstance(e, PartialProblem) for e in subexpressions(parts)):
        raise ValueError(
            f"{what} has the value of a partial_optimize in it, whose inner variables may depend on"
            " the data or not: to decide them here and now, write the inner objective and "
            "constraints into the problem itself; to decide them once the data is known, write the "
            "inner minimum as a maximum of affine pieces (its dual vertices), or as a CallableLoss."
        )


def refuse_nan(expression: Any, what: str) -> None:
    """A constant that is not a number is an error where it is declared."""
    for constant in expression.constants():
        values = constant.value.data if sp.issparse(constant.value) else constant.value
        if np.isnan(values).any():
            raise ValueError(
                f"{what} has a constant with the value nan: {brief(expression)}; drop or impute it."
            )


def check_constraints(constraints: Sequence[Any] | None) -> list[Any]:
    """A list of CVXPY constraints and memberships."""
    if constraints is None:
        return []
    if isinstance(constraints, (In, cp.constraints.constraint.Constraint)):
        raise ValueError("constraints must be a list; write [constraint].")
    if isinstance(constraints, WassersteinBall):
        raise ValueError(
            f"constraints must be a list, got {constraints!r}; pass the ball as ambiguity=: "
            "Problem(objective, [], ball) or Problem(objective, ambiguity=ball)."
        )
    constraints = list(constraints)
    for constraint in constraints:
        known = (In, cp.constraints.constraint.Constraint, bool, np.bool_)
        if not isinstance(constraint, known):
            likely = "; write it >= 0.9" if isinstance(constraint, Probability) else ""
            raise ValueError(
                f"a constraint must be a CVXPY constraint or In(x, set), got "
                f"{type(constraint).__name__}: {constraint!r}{likely}."
            )
        if isinstance(constraint, cp.constraints.constraint.Constraint):
            refuse_partial(constraint.args, "a constraint")
            refuse_nan(constraint, "a constraint")
    return constraints


def check_ambiguity(ambiguity: Any) -> WassersteinBall | None:
    """The ball of a problem, or None; a ValueError for anything else."""
    if ambiguity is None or isinstance(ambiguity, WassersteinBall):
        return ambiguity
    raise ValueError(
        f"ambiguity must be a WassersteinBall, got {ambiguity!r}; "
        "write ambiguity=WassersteinBall(radius=...)."
    )


def check_assumption(assume_convex: Any) -> bool:
    """The user's word that the loss is convex, as a bool."""
    if isinstance(assume_convex, (bool, np.bool_)):
        return bool(assume_convex)
    raise ValueError(
        f"assume_convex must be True or False, got {assume_convex!r}; True is your word that the "
        "loss is convex in the decision."
    )


def refuse_uncertain_constraints(constraints: Sequence[Any]) -> None:
    """Outside of the loss, uncertainty is allowed inside risk measures only."""
    for constraint in constraints:
        if isinstance(constraint, (In, bool, np.bool_)):
            continue
        for parameter in constraint.parameters():
            if isinstance(parameter, UncertainParameter):
                raise ValueError(
                    f"the uncertain parameter {parameter.name()!r} is in the constraint "
                    f"{constraint}, which is to hold for what distribution of it? Bound its "
                    "expectation (wdro_model.expectation(g) <= 0), the mean of its worst share "
                    "(wdro_model.cvar(g, 0.9) <= 0), or ask that it holds with a probability "
                    "(wdro_model.probability(g <= 0) >= 0.9)."
                )


def all_variables(in_loss: Sequence[cp.Variable], constraints: Sequence[Any]) -> list[cp.Variable]:
    """The variables of the loss and of the constraints, each once."""
    variables: dict[cp.Variable, None] = dict.fromkeys(in_loss)
    for constraint in constraints:
        if isinstance(constraint, In):
            variables[constraint.variable] = None
        elif not isinstance(constraint, (bool, np.bool_)):
            variables.update(dict.fromkeys(constraint.variables()))
    if not variables:
        raise ValueError("the problem has no decision variable.")
    return list(variables)


class ReadOnly:
    """An attribute that is fixed once the problem is compiled; kept under its name with a `_`."""

    def __init__(self, way_out: str) -> None:
        self.way_out = way_out

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, problem: Any, owner: type | None = None) -> Any:
        return self if problem is None else getattr(problem, f"_{self.name}")

    def __set__(self, problem: Any, value: Any) -> None:
        raise AttributeError(f"{self.name} of a Problem is read-only: {self.way_out}.")


# ------------------------------------------------------------------ labels
MOVES = (atoms.INDEX, atoms.SPECIAL_INDEX, atoms.RESHAPE, atoms.TRANSPOSE)
"""Atoms that put entries elsewhere."""
MIXES = (atoms.HSTACK, atoms.VSTACK, atoms.CONCATENATE, atoms.KRON, *atoms.CONVOLUTIONS)
"""Atoms in which entries at the same position do not meet."""
ENTRYWISE = (Elementwise, atoms.ADD, atoms.NEGATE, atoms.MULTIPLY, atoms.DIVIDE)
"""Atoms of one labelled argument that leave entries where they are."""
Places = dict[int, np.ndarray]
"""By the ids of labelled leaves, the coordinate of the leaf at each place of an expression."""


@dataclass(frozen=True)
class Labelled:
    """A leaf with a label for each entry, row by row."""

    text: str
    labels: tuple[Any, ...]
    feasible: FeasibleSet | None = None
    """The set of a decision."""


def refuse_other_labels(objective: Any, constraints: Sequence[Any]) -> None:
    """A ValueError where data and decisions, or two data, meet whose labels differ."""
    roots = [c for c in (objective, *constraints) if hasattr(c, "args")]
    parameters = {p for root in roots for p in root.parameters()}
    opaque = isinstance(objective, CallableLoss)
    parameters |= set(objective.parameters) if opaque else set()
    leaves = {
        p.id: Labelled(f"the columns of {p.name()!r}", p.columns)
        for p in parameters
        if isinstance(p, UncertainParameter) and p.columns is not None
    }
    if not leaves:
        return
    for c in constraints:
        if isinstance(c, In) and c.set.names is not None:
            text = f"the coordinates of {c.variable.name()!r} in {c.set!r}"
            leaves[c.variable.id] = Labelled(text, tuple(c.set.names), c.set)
    for root in roots:
        _label_places(root, leaves)
    for p, v in product(objective.parameters, objective.variables) if opaque else ():
        # Where they meet in a function is not known: only the order is compared.
        if p.id in leaves and v.id in leaves:
            rows = (np.arange(p.size), np.arange(v.size))
            _compare_labels(leaves[p.id], leaves[v.id], *rows, order_alone=True)


def _label_places(expression: Any, leaves: dict[int, Labelled]) -> Places:
    """The labelled leaves all of whose entries an expression has, and their places."""
    own = getattr(expression, "id", None)
    if own in leaves and not expression.args:
        return {own: np.arange(expression.size).reshape(expression.shape)}
    parts = [_label_places(argument, leaves) for argument in expression.args]
    if isinstance(expression, MOVES):
        moved = {key: expression.numeric([at]).astype(int) for key, at in parts[0].items()}
        return {key: at for key, at in moved.items() if at.size == parts[0][key].size}
    by_product = isinstance(expression, atoms.MATMUL) and not isinstance(expression, ENTRYWISE)
    inner = by_product and expression.size == 1
    if isinstance(expression, MIXES) or (by_product and not inner):
        return {}
    shapes, shape = [a.shape for a in expression.args], getattr(expression, "shape", None)
    result: Places = {}
    for part, own in zip(parts, shapes):
        if inner or shapes.count(own) > 1 or (own == shape and isinstance(expression, ENTRYWISE)):
            for (key, at), (other, there) in product(part.items(), result.items()):
                if key != other and at.size == there.size:
                    _compare_labels(leaves[key], leaves[other], at, there)
            result |= part
    return result if shape in shapes else {}


def _compare_labels(
    mine: Labelled, theirs: Labelled, at: np.ndarray, there: np.ndarray, order_alone: bool = False
) -> None:
    """A ValueError unless the labels at each position are the same."""
    if mine.feasible is not None:
        mine, theirs, at, there = theirs, mine, there, at
    if mine.feasible is not None:
        return  # only the user knows how the decisions of two sets correspond
    names = [theirs.labels[i] for i in there.ravel()]
    places = {} if theirs.feasible is None else theirs.feasible.coordinates
    own = [mine.labels[i] for i in at.ravel()]
    own = [theirs.labels[places[label]] if label in places else label for label in own]
    unlike = theirs.feasible is None and set(own).isdisjoint(names)
    if own == names or len(own) == 1 or unlike:  # two data with no common label are not compared
        return
    missing, extra = set(names) - set(own), set(own) - set(names)
    if not missing and not extra:
        k = next(k for k, (a, b) in enumerate(zip(own, names)) if a != b)
        raise ValueError(
            f"{mine.text} are {theirs.text} in another order: entry {k} is {own[k]!r} and meets "
            f"{names[k]!r}. Give the order when the data is declared, UncertainParameter(..., "
            "labels=...), by the set or a list; samples=frame.to_numpy() has no labels."
        )
    if not order_alone and not is_numbering(theirs.labels):
        extras = listed([label for label in own if label in extra])
        missed = listed([label for label in names if label in missing])
        raise ValueError(
            f"{mine.text} and {theirs.text} meet entry by entry and have different labels: "
            f"{extras} in place of {missed}. Rename the columns, or pass samples=frame.to_numpy() "
            "where they are in the order of the entries they meet."
        )
