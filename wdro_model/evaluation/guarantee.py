"""Radii with a stated guarantee: `radius_for` and its three rules.

For samples xi_1, ..., xi_N of the data-generating distribution P and a confidence 1 - beta:

bootstrap   the least r whose promise holds in a share 1 - beta of resamples: the optimal value on
            N samples drawn with replacement is at least the risk on the samples left out
rate        r with Prob(W_c(P_N, P) <= r) >= 1 - beta for every P on a box, by concentration
profile     r = q / N, with q the (1 - beta)-quantile of the limit of N R_N, the least radius at
            which the best decision under P is the best for some distribution in the ball:
            `wasserstein_profile`
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from wdro_model import checks
from wdro_model.display.tables import (
    Column,
    Facts,
    Tabular,
    brief,
    brief_title,
    facts_html,
    facts_lines,
)
from wdro_model.evaluation.attempts import FAILED, check_jobs, collect
from wdro_model.evaluation.cross_validation import Fold, RadiusTask, Trial
from wdro_model.evaluation.radius import (
    CHOSEN,
    check_problem,
    check_solve_arguments,
    default_radii,
    fold_seeds,
    increasing_radii,
)
from wdro_model.evaluation.report import PROMISE_TOLERANCE
from wdro_model.evaluation.wasserstein_profile import radius_by_profile
from wdro_model.model import RobustModel
from wdro_model.model.sharing import one_thread_at_a_time
from wdro_model.model.uncertain_constraints import refuse_unpaired
from wdro_model.uncertainty.ambiguity import Assurance
from wdro_model.uncertainty.costs import BoundCost
from wdro_model.uncertainty.joint import JointSamples

if TYPE_CHECKING:
    from wdro_model.problem import Problem

RadiusRule = Literal["bootstrap", "rate", "profile"]
RULE_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "bootstrap": ("radii", "resamples", "jobs"),
    "rate": ("support",),
    "profile": (),
}
"""The arguments of each rule beside those of all rules."""
MIN_SAMPLES = {"bootstrap": 5, "rate": 1, "profile": 2}
"""The least number of samples for each rule."""
DEFAULT_RESAMPLES = 50
"""The number in the paper."""
BOOTSTRAP_RADII = 20
"""Number of positive radii in the default grid of the bootstrap."""
MAX_HALVINGS = 2000
"""Halvings of the box, far more than any number of samples asks for."""
LINE_WIDTH = 80
"""Characters in a line of the guarantee."""


@dataclass(frozen=True, eq=False)
class GuaranteedRadius:
    """A radius with its guarantee; `float(radius)` is the number.

    `WassersteinBall(radius)` and `problem.with_radius(radius)` accept it, and reports then say
    with what probability their promise holds.

    Examples
    --------
    >>> data = np.random.default_rng(0).normal([1.0, 2.0], 0.5, size=(50, 2))
    >>> x, place = cp.Variable(2), wdro.UncertainParameter(2, samples=data)
    >>> loss, ball = cp.sum_squares(x - place), wdro.WassersteinBall(1.0)
    >>> radius = wdro.radius_for(wdro.Problem(cp.Minimize(loss), [], ball), 0.9, "profile")
    >>> radius.confidence, radius.rule
    (0.9, 'profile')
    >>> radius.problem.radius == float(radius)
    True
    """

    radius: float
    assurance: Assurance
    problem: Problem
    """The problem at this radius, not solved."""
    seconds: float
    resampling: Resampling | None = None
    """The promises and whether they were kept, for rule "bootstrap"."""
    notes: tuple[str, ...] = ()

    @property
    def confidence(self) -> float:
        """The requested probability."""
        return self.assurance.confidence

    @property
    def rule(self) -> str:
        """The rule behind the radius."""
        return self.assurance.rule

    @property
    def guarantee(self) -> str:
        """The statement that holds with this confidence, as a sentence."""
        return self.assurance.guarantee

    def __float__(self) -> float:
        return self.radius

    def _facts(self) -> Facts:
        first, *more = wrap(self.guarantee, LINE_WIDTH)
        ball = self.problem.ambiguity
        length = "" if ball.distance is None else f", as a distance {ball.distance:.6g}"
        return [
            ("radius", f"{self.radius:.6g} (W_c{length})"),
            ("confidence", f"{self.confidence:.4g}"),
            ("rule", self.rule),
            ("guarantee", first),
            *(("", line) for line in more),
            ("seconds", f"{self.seconds:.3g}"),
        ]

    _repr_html_ = facts_html
    __str__ = facts_lines

    def __repr__(self) -> str:
        return brief(self, f"{self.radius:.6g}, confidence {self.confidence:.4g} by {self.rule!r}")


@one_thread_at_a_time
def radius_for(
    problem: Problem,
    confidence: float = 0.9,
    rule: RadiusRule = "bootstrap",
    *,
    radii: Any = None,
    resamples: int = DEFAULT_RESAMPLES,
    support: Any = None,
    jobs: int | None = None,
    seed: int = 0,
    progress: bool = True,
    **arguments: Any,
) -> GuaranteedRadius:
    """A radius for a problem with a stated guarantee.

    The radius of the problem's own ball is not used, its cost is kept. Nothing is solved at the
    radius: `result.problem.solve()` does. Variables keep their values.

    Parameters
    ----------
    problem : Problem
        With an ambiguity set.
    confidence : float
        Between 0 and 1, a probability over the draw of the samples.
    rule : "bootstrap", "rate" or "profile"
        "bootstrap": the smallest radius whose promise is at least the mean loss on left-out samples
        in this share of resamples (Mohajerin Esfahani and Kuhn). Any loss; an estimate.
        "rate": the data-generating distribution is in the ball, by a concentration inequality. Any
        loss, bounded data; proven for every N, and very careful in more than a few dimensions.
        "profile": the best decision under the data-generating distribution is the best for some
        distribution in the ball (Blanchet, Kang and Murthy). Smooth losses, quadratic costs; for
        large N. It does not say that the promise holds.
    radii : increasing numbers, optional
        The radii that "bootstrap" tries; by default 0 and twenty from the scale of the data.
    resamples : int
        The number of resamples of "bootstrap".
    support : Support or {parameter: Support}, optional
        The box that holds the data for "rate"; by default the parameters' own supports.
    jobs : int, optional
        Processes for "bootstrap", as in `select_radius`.
    seed : int
        The seed of the resamples, the solves and the draws of the limit distribution.
    progress : bool
        Show a bar.
    **arguments
        Of `Problem.solve`, for the solves of "bootstrap" (and of ERM, for "profile").

    Examples
    --------
    >>> import cvxpy as cp, numpy as np, wdro_model as wdro
    >>> rng = np.random.default_rng(0)
    >>> x = cp.Variable(3, nonneg=True)
    >>> returns = wdro.UncertainParameter(3, samples=rng.normal(0.05, 0.3, size=(30, 3)))
    >>> ball = wdro.WassersteinBall(0.01)
    >>> problem = wdro.Problem(cp.Minimize(-returns @ x), [cp.sum(x) == 1], ball)
    >>> grid = [0.0, 0.001, 0.01, 0.1, 1.0]
    >>> radius = wdro.radius_for(problem, 0.9, radii=grid, resamples=20, progress=False)
    >>> float(radius) in grid, radius.problem.ambiguity.confidence
    (True, 0.9)
    >>> value = radius.problem.solve()
    >>> radius.problem.solution.bound == value               # holds with about that probability
    True
    """
    began = time.perf_counter()
    check_problem(problem, "radius_for")
    confidence = check_confidence(confidence)
    checks.choice("rule", rule, RULE_ARGUMENTS)
    jobs = check_jobs(jobs)
    given = {
        "radii": radii is not None,
        "resamples": resamples != DEFAULT_RESAMPLES,
        "support": support is not None,
        "jobs": jobs is not None,
    }
    check_rule_arguments(rule, given, arguments)
    check_solve_arguments("radius_for", (*given, "confidence", "rule"), seed, arguments)
    resamples = checks.whole_number("resamples", resamples, low=1, hint="50 is usual")
    model = problem._model
    assert isinstance(model, RobustModel)
    check_samples(model, rule)
    notes: tuple[str, ...] = ()
    table = None
    if rule == "rate":
        radius, assurance = radius_by_rate(model, confidence, support)
    elif rule == "profile":
        radius, assurance, notes = radius_by_profile(problem, confidence, int(seed), arguments)
    else:
        if radii is None:
            order = model.ambiguity.cost.order
            radii = default_radii(model.joint, model.cost, order, BOOTSTRAP_RADII)
        else:
            radii = increasing_radii(radii)
        task = RadiusTask(
            problem=problem,
            radii=tuple(map(float, radii)),
            folds=draw_resamples(model.size, resamples, int(seed)),
            seeds=fold_seeds(int(seed), resamples),
            metric="risk",
            scenarios=None,
            arguments=arguments,
        )
        radius, assurance, notes, table = radius_by_bootstrap(task, confidence, jobs, progress)
    notes = (*notes, *constraints_left_out(model, assurance))
    bare = GuaranteedRadius(radius, assurance, problem, 0.0)
    seconds = time.perf_counter() - began
    return GuaranteedRadius(radius, assurance, problem.with_radius(bare), seconds, table, notes)


def constraints_left_out(model: RobustModel, assurance: Assurance) -> list[str]:
    """A note on uncertain constraints of which the confidence says nothing."""
    own = set(model.parameters)
    covered = [
        assurance.covers_law and not c.has_own_ball and set(c.parameters) == own
        for c in model.feasible.uncertain
    ]
    if all(covered):
        return []
    return ["the confidence is that of the objective: nothing is said of uncertain constraints"]


# ------------------------------------------------------------------ arguments
def check_confidence(given: Any) -> float:
    """A probability strictly between 0 and 1."""
    if isinstance(given, str) and given in RULE_ARGUMENTS:
        raise ValueError(
            f"confidence must be a number between 0 and 1, got {given!r}, which is a rule; write "
            f"radius_for(problem, rule={given!r})."
        )
    hint = ""
    if isinstance(given, Real) and 1 < float(given) < 100:
        hint = f"for {given} percent write {float(given) / 100:g}"
    return checks.number("confidence", given, low=0, high=1, open=True, hint=hint)


def check_rule_arguments(
    rule: str, given: Mapping[str, bool], arguments: Mapping[str, Any]
) -> None:
    """Refuse arguments without a use in the rule."""
    for name, present in given.items():
        if present and name not in RULE_ARGUMENTS[rule]:
            owner = next(other for other, names in RULE_ARGUMENTS.items() if name in names)
            raise TypeError(f"{name}= goes with rule={owner!r}, not with rule={rule!r}.")
    if rule == "rate" and arguments:
        raise TypeError(f"rule='rate' solves nothing, and has no use for {next(iter(arguments))}=.")
    if rule == "profile" and "method" in arguments:
        raise TypeError("rule='profile' solves ERM itself, and has no use for method=.")


def check_samples(model: RobustModel, rule: str) -> None:
    """Refuse samples that the rule cannot use: too few, with probabilities, or not paired."""
    if model.size < MIN_SAMPLES[rule]:
        raise ValueError(
            f"rule={rule!r} needs at least {MIN_SAMPLES[rule]} samples, got {model.size}; say "
            "how far the data may move by WassersteinBall(radius=...)."
        )
    if rule == "bootstrap":
        refuse_unpaired(model)
    elif model.joint.probabilities is not None:
        raise ValueError(
            f"rule={rule!r} is for samples that are equally likely, and these have probabilities; "
            "use rule='bootstrap'."
        )


# ------------------------------
# bootstrap: Mohajerin Esfahani and Kuhn (2018), section 7.2. N samples are drawn with replacement,
# about a third of the data is left out, and the promise made on the draw is compared with the risk
# of its decision on the samples that were left out.


RESAMPLING_COLUMNS = (
    Column("radius", "The radius of the Wasserstein ball."),
    Column("share", "In which share of the resamples the promise was kept.", form=".3g"),
    Column("promise", "The mean promise.", form=".6g"),
    Column("mean", "The mean loss on the samples that were left out.", "left out", ".6g"),
    CHOSEN,
)


@dataclass(frozen=True, eq=False)
class Resampling(Tabular):
    """Promises held against the samples that resamples left out, radius by radius.

    Examples
    --------
    >>> problem = problem.with_samples(np.random.default_rng(0).normal([1, 2], 0.5, size=(9, 2)))
    >>> radius = wdro.radius_for(problem, radii=[0.0, 10.0], resamples=4, progress=False)
    >>> radius.resampling.kept.shape                        # radii, resamples
    (2, 4)
    """

    radii: np.ndarray
    """(K,), increasing."""
    promised: np.ndarray
    """Promises, (K, B), as losses: minus the values of an objective that is maximised."""
    happened: np.ndarray
    """Mean losses on what was left out, (K, B)."""
    kept: np.ndarray
    """Whether the promise was kept, (K, B) booleans; a solve that failed kept none."""
    confidence: float

    columns = RESAMPLING_COLUMNS
    __repr__ = brief_title

    @classmethod
    def from_trials(
        cls, radii: tuple[float, ...], results: list[list[Trial]], confidence: float
    ) -> Resampling:
        """The promises of all resamples at all radii, and whether they were kept."""
        promised = np.array([[trial.promise for trial in trials] for trials in results]).T
        happened = np.array([[trial.score for trial in trials] for trials in results]).T
        room = PROMISE_TOLERANCE * (np.abs(promised) + np.abs(happened))
        kept = happened <= promised + room  # false for NaN
        return cls(np.array(radii), promised, happened, kept, confidence)

    @property
    def shares(self) -> np.ndarray:
        """The share of the resamples in which each radius kept its promise, (K,)."""
        return self.kept.mean(axis=1)

    @property
    def index(self) -> int | None:
        """The position of the smallest radius whose share is at least the confidence."""
        enough = np.flatnonzero(self.shares >= self.confidence - 1e-12)
        return int(enough[0]) if enough.size else None

    def rows(self) -> list[dict[str, Any]]:
        """A row for each radius."""
        promises, means = (
            np.ma.masked_invalid(numbers).mean(axis=1).filled(np.nan)
            for numbers in (self.promised, self.happened)
        )
        columns = zip(self.radii, self.shares, promises, means)
        return [
            {
                "radius": float(radius),
                "share": float(share),
                "promise": float(promise),
                "mean": float(mean),
                "chosen": k == self.index,
            }
            for k, (radius, share, promise, mean) in enumerate(columns)
        ]

    @property
    def title(self) -> str:
        return f"promises kept in {self.kept.shape[1]} resamples, {self.confidence:.4g} asked for"


def draw_resamples(size: int, count: int, seed: int) -> tuple[Fold, ...]:
    """Resamples of the size of the data, with replacement, and the samples each leaves out."""
    rng = np.random.default_rng(seed)
    folds: list[Fold] = []
    while len(folds) < count:
        rows = np.sort(rng.integers(0, size, size))
        rest = np.setdiff1d(np.arange(size), rows)
        if rest.size:
            folds.append(Fold(rows, rest))
    return tuple(folds)


def radius_by_bootstrap(
    task: RadiusTask, confidence: float, jobs: int | None, progress: bool
) -> tuple[float, Assurance, tuple[str, ...], Resampling]:
    """The smallest radius whose promise is kept in a share `confidence` of the resamples."""
    count, model = len(task.folds), task.problem._model
    assert isinstance(model, RobustModel)
    collected = collect(
        task,
        count,
        task.parts(),
        jobs=jobs,
        progress=progress,
        title="radius_for",
        unit="resample",
    )
    results = [collected.results[k].trials for k in sorted(collected.results)]
    table = Resampling.from_trials(task.radii, results, confidence)
    trials = [trial for resample in results for trial in resample]
    messages, notes = [trial.message for trial in trials if trial.message], []
    if len(messages) == len(trials):
        raise RuntimeError(
            f"no promise could be made: all {len(trials)} solves failed. {messages[0]}"
        )
    if messages:
        notes.append(
            f"{len(messages)} solves of {len(trials)} failed and kept no promise: {messages[0]}"
        )
    if collected.interruption is not None:
        notes.append(f"{collected.interruption}: {len(results)} of {count} resamples are finished")
    index = table.index
    if index is None:
        best = int(np.argmax(table.shares))
        message = (
            f"no radius keeps its promise in {confidence:.4g} of the resamples: the largest share "
            f"is {table.shares[best]:.3g}, at radius {table.radii[best]:.4g}, the largest radius "
            f"tried {table.radii[-1]:.4g}; give larger radii=[...]."
        )
        raise ValueError(" ".join([message, *notes]))
    if index == 0 and table.radii[0] > 0:
        notes.append("the smallest radius was chosen: a smaller one may do")
    methods = {trials[index].method for trials in results} - {FAILED}
    plain = model.tails is None
    loss = "mean loss" if plain else "risk"
    guarantee = (
        f"in {int(table.kept[index].sum())} of {len(results)} resamples the promise was at least "
        f"the {loss} on the samples left out: an estimate of the probability that it holds, "
        "not a theorem"
    )
    assurance = Assurance(
        confidence,
        "bootstrap",
        guarantee,
        proven=False,
        covers_law=False,
        of="expected loss" if plain else "risk",
        method=methods.pop() if len(methods) == 1 else None,
        cost=model.ambiguity.cost,
    )
    return float(table.radii[index]), assurance, tuple(notes), table


# ------------------------------
# rate: a concentration inequality for W_c(P_N, P).
#
# The distribution P lives on a box, and c is the cost of a move, at most C on the box. The box is
# halved again and again, across its widest side. After j halvings it has 2^j cells, and a move
# within a cell costs at most c_j (c_0 = C). Mass that P_N and P have in common in a cell is matched
# there, the rest in the cell around it, and so on. With TV_j the total variation between the two
# distributions over the cells,
#
#     W_c(P_N, P) <= sum_j (c_{j-1} - c_j) TV_j,      E TV_j <= min(1, sqrt((2^j - 1) / N) / 2).
#
# One sample moves W_c by at most C / N. By McDiarmid's inequality, W_c exceeds its mean by more
# than C sqrt(log(1/beta) / (2N)) with probability at most beta. On a line, W_c is at most C times
# the largest gap between the two distribution functions. By the inequality of Dvoretzky, Kiefer,
# Wolfowitz and Massart, the gap exceeds sqrt(log(2/beta) / (2N)) with probability at most beta.


def radius_by_rate(model: RobustModel, confidence: float, support: Any) -> tuple[float, Assurance]:
    """The radius of a ball that contains the data-generating distribution, whatever it is."""
    refuse_unpriced(model)
    lower, upper = box_of(model.joint, support)
    radius = concentration_radius(model.cost, upper - lower, model.size, confidence)
    of = "expected loss" if model.tails is None else "risk"
    guarantee = (
        f"for any distribution on the box, with probability at least {confidence:.4g} over the "
        f"{model.size} independent samples, the distribution is within the radius, and the {of} of "
        "every decision is at most its worst-case risk"
    )
    cost = model.ambiguity.cost
    return radius, Assurance(confidence, "rate", guarantee, True, True, of=of, cost=cost)


def concentration_radius(cost: BoundCost, width: np.ndarray, size: int, confidence: float) -> float:
    """r with W_c(P_N, P) <= r at the given confidence, for every distribution P on the box.

    The least of C, the bound on the mean plus C sqrt(log(1/beta) / (2N)), and on a line
    C sqrt(log(2/beta) / (2N)).
    """
    beta, whole = 1.0 - confidence, cost_within(cost, width)
    radius = min(
        whole,
        mean_bound(cost, width, size) + whole * math.sqrt(math.log(1.0 / beta) / (2 * size)),
    )
    if np.count_nonzero(width) == 1:
        radius = min(radius, whole * math.sqrt(math.log(2.0 / beta) / (2 * size)))
    return radius


def mean_bound(cost: BoundCost, width: np.ndarray, size: int) -> float:
    """sum_j (c_{j-1} - c_j) min(1, sqrt((2^j - 1) / N) / 2), a bound on the mean of W_c(P_N, P)."""
    scales = cost.coordinate_scales
    cell = np.array(width, dtype=float)
    total, before = 0.0, cost_within(cost, cell)
    for j in range(1, MAX_HALVINGS):
        variation = 0.5 * math.sqrt((2.0**j - 1.0) / size)
        if variation >= 1.0:
            break
        cell[np.argmax(scales * cell)] /= 2
        now = cost_within(cost, cell)
        total += (before - now) * variation
        before = now
    return total + before  # from there on the variations are at most 1, and c_j falls to 0


def cost_within(cost: BoundCost, width: np.ndarray) -> float:
    """An upper bound on the cost of a move within a box of that width."""
    if cost.is_separable or cost.exponent is not None:
        return float(cost.of_displacements(width[None])[0])
    # The length c^(1/p) is a norm, and that of a sum is at most the sum of the lengths.
    assert cost.order is not None
    return float((cost.coordinate_scales @ width) ** cost.order)


def box_of(joint: JointSamples, support: Any) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper bounds (d,) of the data, from the supports declared or from the argument."""
    box = joint.bounds if support is None else bounds_of(joint, support)
    if box is None or not np.all(np.isfinite(box)):
        raise ValueError(
            "rule='rate' needs a box that holds the data for certain, and "
            f"{'the support of the problem' if support is None else 'support='} has no bounds in "
            "some direction; declare support=wdro.supports.Box(lower, upper) on the parameters or "
            "pass it to radius_for, or use rule='bootstrap'."
        )
    lower, upper = box
    slack = 1e-9 * (1.0 + np.abs(box).max())
    for rows in joint.blocks(2**16):
        outside = (rows < lower - slack) | (rows > upper + slack)
        if outside.any():
            row, column = map(int, np.argwhere(outside)[0])
            raise ValueError(
                f"support= does not hold the data: {joint.coordinate(column)} is "
                f"{rows[row, column]:g}, outside [{lower[column]:g}, {upper[column]:g}]; "
                "widen the box."
            )
    return lower, upper


def bounds_of(joint: JointSamples, support: Any) -> Any:
    """The bounds of {parameter: support}, or of one support for all; None where one is no box."""
    by_parameter = isinstance(support, Mapping)
    supports = support if by_parameter else dict.fromkeys(joint.parameters, support)
    lower, upper = [], []
    for parameter in joint.parameters:
        if parameter not in supports:
            raise ValueError(
                f"support= has none for {parameter.name()!r}; give {{parameter: support}} for all "
                f"of {', '.join(repr(p.name()) for p in joint.parameters)}."
            )
        own = supports[parameter]
        if not hasattr(own, "bounds"):
            raise ValueError(
                f"support= must be a support such as wdro.supports.Box(0, 1), or {{parameter: "
                f"support}}, got {own!r}."
            )
        own.validate(parameter.shape)
        box = own.bounds(parameter.shape)
        if box is None:
            return None
        lower.append(np.ravel(box[0]))
        upper.append(np.ravel(box[1]))
    return np.concatenate(lower), np.concatenate(upper)


def refuse_unpriced(model: RobustModel) -> None:
    """A ValueError where moves have no order, or some cannot be made at any price."""
    frozen = np.asarray(model.cost.frozen)
    if frozen.any():
        name = model.joint.coordinate(int(np.argmax(frozen)))
        raise ValueError(
            f"rule='rate' is for distributions that differ from the samples in every coordinate; "
            f"the weight of {name!r} is infinite, and the data-generating distribution in no ball. "
            "Give it a finite weight, or use rule='bootstrap' or 'profile'."
        )
    if model.cost.order is None:
        raise ValueError(
            f"rule='rate' needs a norm of the move or its square, and the cost "
            f"{model.cost.describe()} is neither; use Norm, SquaredEuclidean or Mahalanobis, or "
            "rule='bootstrap'."
        )
