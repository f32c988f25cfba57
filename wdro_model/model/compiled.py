"""A problem after its checks: loss, structure, data, ball, feasible set and compiled programs.

CVXPY compiles a program once if all that changes in it are parameters that enter affinely. Certain
parameters do so already; the radius becomes such a parameter here. A program is written anew if it
holds the old value of a parameter as a constant: that of a certain parameter which shares a term
with uncertain ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine.add_expr import AddExpression
from cvxpy.atoms.affine.binary_operators import MulExpression, multiply
from cvxpy.atoms.affine.unary_operators import NegExpression
from cvxpy.error import ParameterError

from wdro_model.loss import BatchedLoss, CallableLoss, analyse
from wdro_model.loss.batched import FlatLoss
from wdro_model.loss.structure import Structure
from wdro_model.model.declared import Tails, all_variables, refuse_uncertain_constraints
from wdro_model.model.feasible import Feasible
from wdro_model.uncertainty.ambiguity import WassersteinBall
from wdro_model.uncertainty.costs import BoundCost
from wdro_model.uncertainty.joint import JointSamples
from wdro_model.uncertainty.parameter import UncertainParameter
from wdro_model.uncertainty.samples import SampleShares

if TYPE_CHECKING:
    from wdro_model.model.uncertain_constraints import UncertainConstraint


@dataclass(frozen=True, eq=False)
class RadiusParameters:
    """The radius of a ball and its root, as parameters of a program."""

    radius: cp.Parameter = field(
        default_factory=lambda: cp.Parameter(nonneg=True, name="radius", value=0.0)
    )
    root: cp.Parameter = field(
        default_factory=lambda: cp.Parameter(nonneg=True, name="root of the radius", value=0.0)
    )

    def load(self, radius: float) -> None:
        """Set both parameters, before a program is solved."""
        self.radius.save_value(np.float64(radius))  # a ball has checked it
        self.root.save_value(np.float64(math.sqrt(radius)))

    @property
    def ids(self) -> set[int]:
        """The ids of both parameters."""
        return {self.radius.id, self.root.id}


class LRUCache(dict[Any, Any]):
    """Entries by a key; the entry that was used longest ago makes room for a new one."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._capacity = capacity

    def keep(self, key: Any, entry: Any) -> None:
        """Store an entry as the last one that was used."""
        self.pop(key, None)
        self[key] = entry
        if len(self) > self._capacity:
            del self[next(iter(self))]

    def find(self, key: Any) -> Any | None:
        """The entry of a key, which is then the last one that was used; None without one."""
        entry = self.pop(key, None)
        if entry is not None:
            self[key] = entry
        return entry

    def drop(self, key: Any) -> None:
        """Forget an entry, if there is one."""
        self.pop(key, None)


def values_of(parameters: list[cp.Parameter]) -> tuple[bytes, ...]:
    """The values of some parameters, to be compared."""
    values = (parameter.value for parameter in parameters)
    dense = (value.toarray() if hasattr(value, "toarray") else value for value in values)
    return tuple(np.asarray(value, dtype=float).tobytes() for value in dense)


def mixed_parameters(expression: Any) -> list[cp.Parameter]:
    """Certain parameters that stand beside uncertain ones in one term of a sum."""
    mixed: dict[int, cp.Parameter] = {}
    for term in _terms(expression):
        parameters = term.parameters()
        if any(isinstance(p, UncertainParameter) for p in parameters):
            mixed |= {p.id: p for p in parameters if not isinstance(p, UncertainParameter)}
    return list(mixed.values())


def _terms(expression: Any) -> list[Any]:
    """The terms of a sum, through multiples of it by a number."""
    if isinstance(expression, AddExpression):
        return [term for part in expression.args for term in _terms(part)]
    if isinstance(expression, NegExpression):
        return _terms(expression.args[0])
    if isinstance(expression, MulExpression | multiply):
        numbers = [a for a in expression.args if isinstance(a, cp.Constant) and a.size == 1]
        others = [a for a in expression.args if not (isinstance(a, cp.Constant) and a.size == 1)]
        if numbers and len(others) == 1:
            return _terms(others[0])
    return [expression]


# ------------------------------------------------------------------ results of a model
MAX_PROGRAMS = 8
"""Compiled programs that a model keeps: for methods and solvers that are used in turn."""
MAX_RESULTS = 64
"""Results that a model keeps: several for each of the last radii."""


class Memory:
    """Compiled programs and results of a model, shared with its twins of another radius.

    Results hold for one set of values of the certain parameters; programs for all of them.
    forms: programs of models that differ in their samples, by their form.
    """

    def __init__(self, forms: LRUCache | None = None) -> None:
        self.forms = LRUCache(MAX_PROGRAMS) if forms is None else forms
        self.programs, self.radius = LRUCache(MAX_PROGRAMS), RadiusParameters()
        self.inlined: list[cp.Parameter] | None = None
        """Certain parameters that programs may hold as numbers, once they are known."""
        self.values: tuple[Any, ...] = ()
        self.results = LRUCache(MAX_RESULTS)
        self.twins: dict[str, Any] = {}
        """Variants of the model, each with a memory of its own."""

    def find(self, name: str, values: tuple[Any, ...], compute: Callable[[], Any]) -> Any:
        """The result of that name, computed at its first use."""
        if values != self.values:
            self.values, self.results = values, LRUCache(MAX_RESULTS)
        result = self.results[name] if name in self.results else compute()
        self.results.keep(name, result)
        return result


@dataclass(frozen=True)
class OpaqueStructure:
    """The structure of a loss that is a function: no more than its author says."""

    convex: bool
    degree = math.inf
    curvature_in_data = "unknown"
    pieces = None

    @property
    def convex_in_decision(self) -> bool:
        return self.convex

    @property
    def convex_on_samples(self) -> bool:
        return self.convex

    def describe(self) -> str:
        """The structure in one line, for people."""
        known = "convex" if self.convex else "not known to be convex"
        return f"a callable, {known} in the decision"


@dataclass(frozen=True)
class Model:
    """A problem in which nothing is uncertain."""

    expression: Any
    """The loss as a CVXPY expression; None for a callable loss."""
    loss: FlatLoss
    """The loss on flat vectors."""
    structure: Structure | OpaqueStructure
    """How the loss depends on the decision and the data."""
    feasible: Feasible
    assume_convex: bool
    maximise: bool
    """Is the loss minus an objective that the user maximises?"""
    tails: Tails | None = field(default=None, repr=False, compare=False, kw_only=True)
    """How decisions are judged, where the objective has CVaRs."""
    memory: Memory = field(default_factory=Memory, repr=False, compare=False, kw_only=True)
    """Results that models which differ in nothing but the radius share."""

    is_uncertain = False

    @property
    def sign(self) -> float:
        """The user's objective is this times the loss."""
        return -1.0 if self.maximise else 1.0

    @property
    def radius(self) -> float:
        """The transport budget."""
        return 0.0

    @property
    def rows(self) -> np.ndarray:
        """The samples as rows (N, d): a single empty row."""
        return np.zeros((1, 0))

    @property
    def size(self) -> int:
        """The number of samples, N."""
        return 1

    @property
    def shares(self) -> SampleShares:
        """The shares of the samples in averages over them."""
        return SampleShares.full(1)

    @property
    def mean_row(self) -> np.ndarray:
        """The average sample, (1, d)."""
        return self.rows

    @property
    def affine_in_data(self) -> bool:
        """Is the loss known to be affine in the data?"""
        return self.structure.degree <= 1

    @property
    def convex_in_decision(self) -> bool:
        """Is the loss convex in x for every scenario, by CVXPY's rules or by the user's word?"""
        return self.assume_convex or self.structure.convex_in_decision

    @property
    def convex_on_samples(self) -> bool:
        """Is the loss convex in x for scenarios like the samples? ERM asks for no more."""
        return self.structure.convex_on_samples or self.convex_in_decision

    def mean_values(self) -> dict[cp.Parameter, np.ndarray]:
        """The average of each uncertain parameter over the samples."""
        return {}

    # ------------------------------------------------------------------ with its constraints
    @property
    def parameters(self) -> tuple[UncertainParameter, ...]:
        """The uncertain parameters of the loss, then those of constraints."""
        others = (p for u in self.feasible.uncertain for p in u.parameters)
        return tuple(dict.fromkeys((*self.loss.loss.parameters, *others)))

    def scenarios_of(self, joint: JointSamples, scenarios: Any) -> Any:
        """The part of some scenarios, given for all parameters, that belongs to `joint`."""
        others = [p for p in self.parameters if p not in joint.slices]
        if not others:
            return scenarios
        if not isinstance(scenarios, Mapping):
            names = ", ".join(repr(p.name()) for p in self.parameters)
            raise ValueError(
                f"scenarios of several parameters must be given as {{parameter: array}} for "
                f"{names}, got a {type(scenarios).__name__}."
            )
        left_out = [*(p.name() for p in others), *(id(p) for p in others)]
        return {
            key: value
            for key, value in scenarios.items()
            if (key if isinstance(key, str) else id(key)) not in left_out
        }

    def with_uncertain(self, uncertain: Sequence[UncertainConstraint]) -> Self:
        """The model with other uncertain constraints."""
        feasible = self.feasible.with_uncertain(uncertain)
        return replace(self, feasible=feasible, memory=Memory())

    def empirical(self) -> Self:
        """The model with uncertain constraints that hold on the samples alone."""
        uncertain = self.feasible.uncertain
        if not uncertain:
            return self
        if "empirical" not in self.memory.twins:
            self.memory.twins["empirical"] = self.with_uncertain([u.empirical() for u in uncertain])
        return self.memory.twins["empirical"]

    def with_ball(self, ball: WassersteinBall) -> Self:
        """The model with another ball of the same cost, in the objective and constraints."""
        uncertain = self.feasible.uncertain
        if not uncertain:
            return self
        return self.with_uncertain([u.with_radius(ball.radius) for u in uncertain])

    def with_samples(self, other: Callable[[JointSamples], JointSamples]) -> Self:
        """The model on other samples, in the objective and constraints."""
        uncertain = self.feasible.uncertain
        if not uncertain:
            return self
        return self.with_uncertain([u.with_samples(other) for u in uncertain])

    # ------------------------------------------------------------------ parameters and results
    def certain_parameters(self) -> list[cp.Parameter]:
        """The parameters with one value at each solve, of the loss and of the constraints."""
        return [*self.loss_parameters(), *self.feasible.parameters]

    def loss_parameters(self) -> list[cp.Parameter]:
        """The certain parameters of the loss."""
        return [] if self.expression is None else self.loss.loss.certain

    def user_leaves(self) -> list[Any]:
        """The variables and the certain parameters."""
        return [*self.feasible.layout.variables, *self.certain_parameters()]

    def remember(self, name: str, compute: Callable[[], Any]) -> Any:
        """A result computed once for the current values of the certain parameters."""
        return self.memory.find(name, self._stamp(), compute)

    def recall(self, name: str) -> Any:
        """A result that is remembered for these values; None if there is none."""
        return self.memory.results.get(name) if self.memory.values == self._stamp() else None

    def _stamp(self) -> tuple[Any, ...]:
        known = [p.value for p in self.certain_parameters()]
        values = tuple(np.asarray(value).tobytes() for value in known if value is not None)
        return (*values, *self.feasible.stamp())

    def parametric(self) -> Model:
        """The model with its radius as a CVXPY parameter, for programs that are solved again."""
        return self

    def inlined_parameter_values(self) -> tuple[bytes, ...]:
        """The values of the certain parameters that a program may hold as numbers."""
        if self.expression is None:
            return ()
        if self.memory.inlined is None:
            self.memory.inlined = mixed_parameters(self.expression)
        return values_of(self.memory.inlined)


@dataclass(frozen=True)
class RobustModel(Model):
    """A problem with uncertain data, and a ball around it.

    Examples
    --------
    >>> from wdro_model.counterparts import Counterpart, RobustModel
    >>> class Reader(Counterpart):
    ...     formula = "none"
    ...     def refusal(self, model: RobustModel) -> str:
    ...         return f"{model.size} samples, {model.joint.dimension} numbers in each"
    ...     def program(self, model: RobustModel) -> None:
    ...         return None
    >>> wdro.register_counterpart("reader", Reader) is Reader
    True
    >>> loss = cp.Minimize(cp.exp(-price @ x))
    >>> try:
    ...     wdro.Problem(loss, [cp.sum(x) == 1], ball).solve(method="exact")
    ... except wdro.NoReformulationError as error:
    ...     print("2 samples, 2 numbers in each" in error.reason)
    True
    """

    joint: JointSamples
    """The joint samples."""
    ambiguity: WassersteinBall
    """The ball; one of radius 0 where the user gave none."""
    cost: BoundCost
    """The ground cost with its weights resolved."""
    has_ball: bool
    """Did the user give a ball?"""
    budget: RadiusParameters | None = field(default=None, repr=False, compare=False, kw_only=True)
    """The radius as a CVXPY parameter, for programs that are solved again; else None."""

    is_uncertain = True

    @property
    def radius(self) -> float:
        """The transport budget; 0 where no coordinate of the data may move."""
        return 0.0 if np.all(self.cost.frozen) else self.ambiguity.budget

    @property
    def written_radius(self) -> Any:
        """The radius as it stands in programs: a number, or a parameter."""
        return self.radius if self.budget is None else self.budget.radius

    @property
    def written_root(self) -> Any:
        """The square root of the radius as it stands in programs."""
        return math.sqrt(self.radius) if self.budget is None else self.budget.root

    def parametric(self) -> RobustModel:
        self.memory.radius.load(self.radius)
        return replace(self, budget=self.memory.radius)

    @property
    def rows(self) -> np.ndarray:
        """The samples as rows (N, d)."""
        return self.joint.matrix

    @property
    def size(self) -> int:
        return self.joint.size

    @property
    def shares(self) -> SampleShares:
        return self.joint.shares

    @property
    def mean_row(self) -> np.ndarray:
        return self.joint.mean[None]

    def mean_values(self) -> dict[cp.Parameter, np.ndarray]:
        return {p: v[0] for p, v in self.joint.split(self.mean_row).items()}

    def with_joint(self, joint: JointSamples) -> RobustModel:
        """The objective on other samples; the results of the old ones are forgotten."""
        return replace(
            self,
            loss=FlatLoss(self.loss.loss, self.loss.layout, joint),
            joint=joint,
            ambiguity=self.ambiguity.unassured(),
            cost=self.ambiguity.cost.bound_to(joint),
            memory=Memory(self.memory.forms),
        )

    def with_ball(self, ball: WassersteinBall) -> RobustModel:
        twin = object.__new__(type(self))  # as `replace` does, in less time
        twin.__dict__.update(super().with_ball(ball).__dict__, ambiguity=ball)
        return twin

    def with_samples(self, other: Callable[[JointSamples], JointSamples]) -> RobustModel:
        return super().with_samples(other).with_joint(other(self.joint))

    def on_samples(self, rows: np.ndarray) -> RobustModel:
        """The model on some of its samples, given as indices; the cost keeps its weights."""
        joint = self.joint.take(rows)
        loss = FlatLoss(self.loss.loss, self.loss.layout, joint)
        return replace(self, loss=loss, joint=joint, memory=Memory())

    def on_some(self, count: int) -> RobustModel:
        """The model on a random subsample, drawn by the probabilities of the samples."""
        rng, p = np.random.default_rng(0), self.joint.probabilities
        if p is None:
            return self.on_samples(np.sort(rng.choice(self.size, count, replace=False)))
        rows, times = np.unique(rng.choice(self.size, count, p=p), return_counts=True)
        some = self.on_samples(rows)
        joint = some.joint.reweighted(times / count)
        return replace(some, joint=joint, loss=FlatLoss(self.loss.loss, self.loss.layout, joint))

    def without_ball(self) -> RobustModel:
        """The model of ERM: nothing moves."""
        ball = replace(self.ambiguity.unassured(), radius=0.0)
        return replace(self, ambiguity=ball, has_ball=False)


def compiled(
    loss: BatchedLoss | CallableLoss,
    constraints: Sequence[Any],
    ball: WassersteinBall | None,
    assume_convex: bool,
    maximise: bool = False,
    tails: Tails | None = None,
    in_constraints: Sequence[cp.Variable] = (),
) -> Model:
    """Loss, structure, joint samples, bound cost and feasible set of a problem.

    in_constraints: variables of uncertain constraints, which are added later.
    """
    uncertain = tuple(loss.parameters)
    refuse_uncertain_constraints(constraints)
    for parameter in uncertain:
        if parameter.samples is None:
            raise ValueError(
                f"the uncertain parameter {parameter.name()!r} has no samples; declare it as "
                f"UncertainParameter({parameter.shape}, samples=array of shape (N, ...))."
            )
    expression = None if isinstance(loss, CallableLoss) else loss.expression
    structure = (
        OpaqueStructure(loss.convex)
        if isinstance(loss, CallableLoss)
        else analyse(loss.expression, uncertain)
    )
    variables = (*loss.variables, *in_constraints)
    feasible = Feasible(constraints, all_variables(variables, constraints))
    if not uncertain:
        flat = FlatLoss(loss, feasible.layout, None)
        return Model(expression, flat, structure, feasible, assume_convex, maximise, tails=tails)
    joint = JointSamples(uncertain)
    given = WassersteinBall(0.0) if ball is None else ball
    return RobustModel(
        expression,
        FlatLoss(loss, feasible.layout, joint),
        structure,
        feasible,
        assume_convex,
        maximise,
        joint,
        given,
        given.cost.bound_to(joint),
        has_ball=ball is not None,
        tails=tails,
    )


def refuse_missing_values(model: Model) -> None:
    """Certain parameters must have a value before anything is solved."""
    for parameter in model.certain_parameters():
        if not isinstance(parameter, UncertainParameter) and parameter.value is None:
            raise ParameterError(
                f"the parameter {parameter.name()!r} has no value; set its .value, or declare "
                "it as an UncertainParameter with samples."
            )


def refuse_empty_set(model: Model) -> None:
    """An empty feasible set is an error here rather than in the middle of a solve."""
    feasible = model.feasible.with_uncertain(())
    unknown = any(parameter.value is None for parameter in feasible.parameters)
    if not feasible.constraints or feasible.is_integer or unknown:
        return
    feasible.check_nonempty()
