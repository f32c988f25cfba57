"""A radius with a stated guarantee, and the rules that it is found by."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Integral, Real
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from wdro_model.display.factual import Facts, brief, facts_html, facts_text
from wdro_model.errors import unknown_name
from wdro_model.evaluation.attempts import check_solving
from wdro_model.evaluation.concentration import radius_by_rate
from wdro_model.evaluation.parallel import check_jobs
from wdro_model.evaluation.radius import OWN, check_problem, increasing_radii
from wdro_model.evaluation.resampling import Resampling, radius_by_bootstrap
from wdro_model.evaluation.wasserstein_profile import radius_by_profile
from wdro_model.model import RobustModel
from wdro_model.model.sharing import one_thread_at_a_time
from wdro_model.model.uncertain_constraints import refuse_unpaired
from wdro_model.solve.options import Options
from wdro_model.uncertainty.assurance import Assurance

if TYPE_CHECKING:
    from wdro_model.problem import Problem

RadiusRule = Literal["bootstrap", "rate", "profile"]
TAKEN: Mapping[str, tuple[str, ...]] = {
    "bootstrap": ("radii", "resamples", "jobs"),
    "rate": ("support",),
    "profile": (),
}
"""The arguments that each rule takes beside those of all."""
LINE = 80
"""Characters of a line of the guarantee."""
RESAMPLES = 50
"""As in the paper."""
LEAST = {"bootstrap": 5, "rate": 1, "profile": 2}
"""Samples that each rule needs."""


@dataclass(frozen=True, eq=False)
class GuaranteedRadius:
    """A radius and what is known of it; `float(found)` is the radius.

    `WassersteinBall(found)` and `problem.with_radius(found)` take it as it is, and reports then say
    with what probability their promise holds.

    Examples
    --------
    >>> import cvxpy as cp, numpy as np, wdro_model as wdro
    >>> data = np.random.default_rng(0).normal([1.0, 2.0], 0.5, size=(50, 2))
    >>> x, place = cp.Variable(2), wdro.UncertainParameter(2, samples=data)
    >>> loss, ball = cp.sum_squares(x - place), wdro.WassersteinBall(1.0)
    >>> found = wdro.radius_for(wdro.Problem(cp.Minimize(loss), [], ball), 0.9, "profile")
    >>> isinstance(found, wdro.evaluation.GuaranteedRadius), found.confidence, found.rule
    (True, 0.9, 'profile')
    >>> found.problem.radius == float(found)
    True
    """

    radius: float
    assurance: Assurance
    problem: Problem
    """The problem at this radius, not solved."""
    seconds: float
    resampling: Resampling | None = None
    """How often the promise was kept at each radius, for rule "bootstrap"."""
    notes: tuple[str, ...] = ()

    @property
    def confidence(self) -> float:
        """The probability that was asked for."""
        return self.assurance.confidence

    @property
    def rule(self) -> str:
        """The rule that it was found by."""
        return self.assurance.rule

    @property
    def guarantee(self) -> str:
        """What holds with this confidence, and in which sense: a sentence."""
        return self.assurance.guarantee

    def __float__(self) -> float:
        return self.radius

    def _facts(self) -> Facts:
        first, *more = wrap(self.guarantee, LINE)
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

    def __str__(self) -> str:
        return "\n".join([facts_text(self._facts()), *(f"note: {note}" for note in self.notes)])

    def __repr__(self) -> str:
        return brief(self, f"{self.radius:.6g}, confidence {self.confidence:.4g} by {self.rule!r}")


@one_thread_at_a_time
def radius_for(
    problem: Problem,
    confidence: float = 0.9,
    rule: RadiusRule = "bootstrap",
    *,
    radii: Any = None,
    resamples: int = RESAMPLES,
    support: Any = None,
    jobs: int | None = None,
    seed: int = 0,
    progress: bool = True,
    **arguments: Any,
) -> GuaranteedRadius:
    """A radius for a problem with a stated guarantee.

    The radius of the problem's own ball is not used, its cost is kept. Nothing is solved at the
    radius that is found: `found.problem.solve()` does. Variables keep their values.

    Parameters
    ----------
    problem : Problem
        With an ambiguity set.
    confidence : float
        Between 0 and 1, a probability over the draw of the samples.
    rule : "bootstrap", "rate" or "profile"
        "bootstrap": the smallest radius whose promise is at least the mean loss on left-out samples
        in this share of resamples (Mohajerin Esfahani and Kuhn). Any loss; an estimate.
        "rate": the law of the data is in the ball, by a concentration inequality. Any loss, bounded
        data; proven for every N, and very careful in more than a few dimensions.
        "profile": the best decision under the true law is the best for some law in the ball
        (Blanchet, Kang and Murthy). Smooth losses, quadratic costs; for large N. It does not say
        that the promise holds.
    radii : increasing numbers, optional
        Those that "bootstrap" tries; by default 0 and twenty from the scale of the data.
    resamples : int
        Of "bootstrap".
    support : Support or {parameter: Support}, optional
        The box that holds the data for "rate"; by default the parameters' own supports.
    jobs : int, optional
        Processes for "bootstrap", as in `select_radius`.
    seed : int
        Of the resamples, the solves and the draws of the limit law.
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
    >>> found = wdro.radius_for(problem, 0.9, radii=grid, resamples=20, progress=False)
    >>> found.radius in grid, found.problem.ambiguity.confidence
    (True, 0.9)
    >>> value = found.problem.solve()
    >>> found.problem.solution.bound == value                # holds with about that probability
    True
    """
    began = time.perf_counter()
    check_problem(problem, "radius_for")
    confidence = check_confidence(confidence)
    if rule not in TAKEN:
        raise ValueError(unknown_name("rule", rule, TAKEN))
    jobs = check_jobs(jobs)
    given = {
        "radii": radii is not None,
        "resamples": resamples != RESAMPLES,
        "support": support is not None,
        "jobs": jobs is not None,
    }
    check_rule_arguments(problem, rule, given, seed, arguments)
    resamples = check_resamples(resamples)
    model = problem._model
    assert isinstance(model, RobustModel)
    if model.size < LEAST[rule]:
        raise ValueError(
            f"rule={rule!r} needs at least {LEAST[rule]} samples, got {model.size}; say how far "
            "the data may move by WassersteinBall(radius=...)."
        )
    if rule != "bootstrap" and getattr(model.joint, "probabilities", None) is not None:
        raise ValueError(
            f"rule={rule!r} is for samples that are equally likely, and these have probabilities; "
            "use rule='bootstrap'."
        )
    if rule == "bootstrap":
        refuse_unpaired(model)
    notes: tuple[str, ...] = ()
    table = None
    if rule == "rate":
        radius, assurance = radius_by_rate(model, confidence, support)
    elif rule == "profile":
        radius, assurance, notes = radius_by_profile(problem, confidence, int(seed), arguments)
    else:
        radius, assurance, notes, table = radius_by_bootstrap(
            problem,
            confidence,
            radii=None if radii is None else increasing_radii(radii),
            resamples=resamples,
            jobs=jobs,
            seed=int(seed),
            progress=progress,
            arguments=arguments,
        )
    notes = (*notes, *constraints_left_out(model, assurance))
    found = GuaranteedRadius(radius, assurance, problem, 0.0)
    seconds = time.perf_counter() - began
    return GuaranteedRadius(radius, assurance, problem.with_radius(found), seconds, table, notes)


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


def check_confidence(given: Any) -> float:
    """A probability strictly between 0 and 1."""
    if isinstance(given, str) and given in TAKEN:
        raise ValueError(
            f"confidence must be a number between 0 and 1, got {given!r}, which is a rule; write "
            f"radius_for(problem, rule={given!r})."
        )
    number = isinstance(given, Real) and not isinstance(given, bool | np.bool_)
    if not number or not 0 < float(given) < 1:
        percent = number and 1 < float(given) < 100
        hint = f"; for {given} percent write {float(given) / 100:g}" if percent else ""
        raise ValueError(f"confidence must be a number between 0 and 1, got {given!r}{hint}.")
    return float(given)


def check_resamples(given: Any) -> int:
    """A number of resamples."""
    whole = isinstance(given, Integral) and not isinstance(given, bool | np.bool_)
    if not whole or given < 1:
        raise ValueError(f"resamples must be a positive integer, got {given!r}; 50 is usual.")
    return int(given)


def check_rule_arguments(
    problem: Problem,
    rule: str,
    given: Mapping[str, bool],
    seed: Any,
    arguments: Mapping[str, Any],
) -> None:
    """Refuse what the rule has no use for, and what `solve` would refuse."""
    for name, present in given.items():
        if present and name not in TAKEN[rule]:
            owner = next(other for other, names in TAKEN.items() if name in names)
            raise TypeError(f"{name}= goes with rule={owner!r}, not with rule={rule!r}.")
    solving = [f.name for f in fields(Options) if f.name not in OWN]
    every = [*given, *solving, "method", "solver", "time_limit", "confidence", "rule", "progress"]
    for name in arguments:
        if name in OWN:
            raise TypeError(f"radius_for sets {name}= itself.")
        if name not in every:
            raise TypeError(unknown_name("argument", name, every))
    if rule == "rate" and arguments:
        raise TypeError(f"rule='rate' solves nothing, and has no use for {next(iter(arguments))}=.")
    check_solving(problem, {"method": "auto", **arguments, "seed": seed})
    if rule == "bootstrap" and arguments.get("method") == "erm":
        raise ValueError(
            "method='erm' does not see the radius, there is nothing to choose; use 'auto', 'exact' "
            "or 'smoothed'."
        )
    if rule == "profile" and "method" in arguments:
        raise TypeError("rule='profile' solves ERM itself, and has no use for method=.")
