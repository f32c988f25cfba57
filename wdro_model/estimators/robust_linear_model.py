"""What the estimators share: a loss of one score, features @ coef + intercept, over a ball.

    min over coef, intercept of  sup { E_Q loss(target, features @ coef + intercept) :
                                       W_c(Q, empirical distribution) <= radius }

The worst case is exact, or refused: by which loss and which cost.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal, get_args

import cvxpy as cp
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import check_cv
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from wdro_model.errors import NoReformulationError, unknown_name
from wdro_model.evaluation import RadiusSelection, select_radius
from wdro_model.problem import Problem
from wdro_model.uncertainty import UncertainParameter, WassersteinBall
from wdro_model.uncertainty.costs import GroundCost, Norm, SquaredEuclidean

CostName = Literal["l1", "l2", "linf", "squared"]
LossName = Literal["squared", "absolute"]
Labels = Literal["fixed", "uncertain"]

COSTS: dict[str, GroundCost] = {
    "l1": Norm(1),
    "l2": Norm(2),
    "linf": Norm("inf"),
    "squared": SquaredEuclidean(),
}
"""Costs of moving the features, by the names that `cost` may have."""
CROSS_VALIDATION = "cv"


@dataclass(frozen=True)
class Fitted:
    """One score, fitted."""

    coef: np.ndarray
    """(d,)"""
    intercept: float
    problem: Problem
    """Solved on all samples."""
    selection: RadiusSelection | None
    """Of the radius, where that was asked for."""

    @property
    def iterations(self) -> int:
        """Of the solver; 0 where it counts none."""
        solution = self.problem.solution
        return (solution and solution.iterations) or 0


@dataclass(frozen=True)
class Weighed:
    """The samples that count, and how much."""

    X: np.ndarray
    y: np.ndarray
    probabilities: np.ndarray | None
    """Of each, (n,); None where they are equal."""
    counts: np.ndarray
    """Which of the samples that were given they are, booleans."""

    @classmethod
    def of(cls, X: np.ndarray, y: np.ndarray, sample_weight: Any) -> Weighed:
        """Samples of weight 0 are left out; weights count in proportion."""
        if sample_weight is None:
            return cls(X, y, None, np.ones(len(X), dtype=bool))
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        counts = weights > 0
        if not counts.any():
            raise ValueError("sample_weight is zero for all samples; some of them must count.")
        return cls(X[counts], y[counts], weights[counts] / weights.sum(), counts)

    def merged(self) -> Weighed:
        """Repeated samples as one of their weight: to the last digit what weights would give."""
        classes, codes = np.unique(self.y, return_inverse=True)
        rows = np.column_stack([self.X, codes])
        found, inverse = np.unique(rows, axis=0, return_inverse=True)
        if self.probabilities is None and len(found) == len(rows):
            return self
        equal = np.full(len(rows), 1.0 / len(rows))
        shares = np.bincount(
            np.ravel(inverse), equal if self.probabilities is None else self.probabilities
        )
        return replace(
            self, X=found[:, :-1], y=classes[found[:, -1].astype(int)], probabilities=shares
        )

    def places(self, indices: np.ndarray) -> np.ndarray:
        """Where samples that were given are among those that count."""
        indices = np.arange(len(self.counts))[indices]
        return (np.cumsum(self.counts) - 1)[indices[self.counts[indices]]]


class RobustLinearModel(BaseEstimator):
    """A linear score whose worst-case expected loss over a Wasserstein ball is least."""

    radius: float | Literal["cv"]
    cost: CostName | GroundCost
    fit_intercept: bool
    radii: Any
    cv: Any
    n_jobs: int | None
    labels: Labels = "fixed"

    n_features_in_: int
    coef_: np.ndarray
    intercept_: Any

    @abstractmethod
    def _loss(self, target: Any, score: Any) -> Any:
        """The loss as a CVXPY expression in the target and the score."""

    @abstractmethod
    def _costs(self) -> tuple[str, ...]:
        """The names of the costs under which its worst case is known."""

    def _weighed(self, X: np.ndarray, y: np.ndarray, sample_weight: Any) -> Weighed:
        """The samples that count; folds tell repeated ones apart."""
        given = Weighed.of(X, y, sample_weight)
        return given if self.radius == CROSS_VALIDATION else given.merged()

    def _fitted(self, given: Weighed, target: np.ndarray, folds: Any) -> Fitted:
        """The score of least worst-case loss; folds: pairs of indices, None for a given radius."""
        X = given.X
        features = UncertainParameter(
            X.shape[1], "features", samples=X, probabilities=given.probabilities
        )
        label = UncertainParameter(name="target", samples=target)
        coef, intercept = cp.Variable(X.shape[1], name="coef"), cp.Variable(name="intercept")
        score = features @ coef + (intercept if self.fit_intercept else 0.0)
        radius = 0.0 if folds is not None else self.radius
        ball = WassersteinBall(radius, self._weighted_cost(features, label))
        problem = Problem(cp.Minimize(self._loss(label, score)), ambiguity=ball)
        self._refuse_unknown_worst_case(problem)
        selection = None
        if folds is not None:
            selection = self._selection(problem, folds)
            problem = selection.problem
        problem.solve("exact", progress=False)
        if problem.status != cp.OPTIMAL:
            warnings.warn(
                f"the solve of {self!r} ended with the status {problem.status!r}: its coefficients "
                "may be a little off; scale the features, for instance by StandardScaler.",
                ConvergenceWarning,
                stacklevel=4,
            )
        constant = float(intercept.value) if self.fit_intercept else 0.0
        return Fitted(np.array(coef.value), constant, problem, selection)

    def _selection(self, problem: Problem, folds: Any) -> RadiusSelection:
        """The radius by cross-validation, the problem not yet solved there."""
        selection = select_radius(
            problem,
            self.radii,
            folds,
            jobs=self.n_jobs,
            refit=False,
            progress=False,
            method="exact",
        )
        if not selection.complete:
            raise KeyboardInterrupt
        return selection

    def _keep(self, found: list[Fitted]) -> None:
        """Set what is known of each score: the thing itself if there is one score."""
        self.problem_ = one_or_all([one.problem for one in found])
        self.promise_ = one_or_all([one.problem.value for one in found])
        self.radius_ = one_or_all([one.problem.radius for one in found])
        self.n_iter_ = max(one.iterations for one in found)
        self.__dict__.pop("selection_", None)
        if found[0].selection is not None:
            self.selection_ = one_or_all([one.selection for one in found])

    def _scores(self, X: Any) -> np.ndarray:
        """features @ coef_ + intercept_, (n,), or (n, k) for k scores."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        return X @ self.coef_.T + self.intercept_

    # -------------------------------------------------------------- what is given
    def _folds(self, X: np.ndarray, y: np.ndarray, given: Weighed, stratified: bool) -> Any:
        """Pairs of indices where the radius is chosen by cross-validation; None if it is given."""
        if isinstance(self.radius, str) and self.radius == CROSS_VALIDATION:
            splits = check_cv(self.cv, y, classifier=stratified).split(X, y)
            return [tuple(given.places(side) for side in split) for split in splits]
        if isinstance(self.radius, str):
            raise ValueError(
                f"radius={self.radius!r} of {type(self).__name__} must be a number >= 0, or "
                f"{CROSS_VALIDATION!r} to choose it by cross-validation."
            )
        if self.radii is not None:
            raise ValueError(
                f"radii= of {type(self).__name__} are those to choose among with "
                f"radius={CROSS_VALIDATION!r}, but radius={self.radius!r}; leave one of them out."
            )
        return None

    def _weighted_cost(self, features: UncertainParameter, target: UncertainParameter) -> Any:
        """The ground cost of features and target together."""
        cost = self.cost
        if isinstance(cost, str):
            if cost not in COSTS:
                raise ValueError(unknown_name("cost", cost, COSTS))
            cost = COSTS[cost]
        weighted = is_dataclass(cost) and any(field.name == "weights" for field in fields(cost))
        if not (isinstance(cost, GroundCost) and weighted):
            raise ValueError(
                f"cost of {type(self).__name__} must be one of {', '.join(map(repr, COSTS))}, or a "
                f"cost with weights for the features, such as costs.Norm(2, weights=[1.0, 2.0]); "
                f"got {self.cost!r}."
            )
        given = cost.weights  # type: ignore[attr-defined]
        if isinstance(given, dict):
            raise ValueError(
                f"weights of the cost of {type(self).__name__} are those of its features: a "
                "number, an array (n_features,) or 'standardize', no dict."
            )
        moving = given if isinstance(given, str) else 1.0
        weights = {
            features: 1.0 if given is None else given,
            target: np.inf if self._holds_labels() else moving,
        }
        return replace(cost, weights=weights)  # type: ignore[type-var]

    def _holds_labels(self) -> bool:
        if self.labels not in get_args(Labels):
            raise ValueError(unknown_name("labels", self.labels, get_args(Labels)))
        return self.labels == "fixed"

    def _refuse_unknown_worst_case(self, problem: Problem) -> None:
        """Refuse a loss and a cost without an exact counterpart, at any radius."""
        try:
            problem.with_radius(1.0).explain("exact")
        except NoReformulationError as error:
            raise ValueError(
                f"{self!r} has no worst case that is known exactly with this cost; use "
                f"cost={' or '.join(map(repr, self._costs()))}."
            ) from error


def one_or_all(values: list[Any]) -> Any:
    """The value itself where there is one; else an array of numbers, or a tuple."""
    if len(values) == 1:
        return values[0]
    return np.array(values) if isinstance(values[0], float) else tuple(values)
