"""Robust linear regression and classification with scikit-learn's conventions.

    min over coef, intercept of  sup { E_Q loss(target, features @ coef + intercept) :
                                       W_c(Q, empirical distribution) <= radius }

The worst case is exact, or refused: by which loss and which cost.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from dataclasses import dataclass, field, fields, is_dataclass, replace
from inspect import cleandoc
from typing import Any, Literal, Self, get_args

import cvxpy as cp
import numpy as np
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import check_cv
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from wdro_model import checks
from wdro_model.errors import NoReformulationError
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

PARAMETERS = """Parameters
----------
radius : float or "cv"
    How far the data may move, on average: a bound on the transport cost, which is the square of a
    distance if the cost is "squared". "cv" chooses it by cross-validation.
cost : "l1", "l2", "linf", "squared" or a ground cost
    The cost of a move of the features: a norm of it, or the square of its length. A ground cost
    with weights for the features, such as `costs.Norm(2, weights="standardize")`.
"""
"""The first parameters of all estimators, which `RobustLinearModel` adds to docstrings."""
MORE_PARAMETERS = """fit_intercept : bool
    Without it the score at 0 is 0.
radii : increasing numbers, optional
    The candidates with radius="cv"; by default eleven from the scale of the data, 0 the first.
cv : int, splitter or pairs of indices
    The folds with radius="cv", as elsewhere in scikit-learn: stratified for classifiers.
n_jobs : int, optional
    Processes for the folds.

Attributes
----------
classes_ : array (n_classes,)
    The classes in increasing order, for classifiers. Two classes have one score, which is
    positive for the second; of more, each has a score against the rest.
coef_ : array (n_features,); for classifiers (n_scores, n_features)
    The coefficient of each feature in the score: in the prediction of a regression.
intercept_ : float; for classifiers (n_scores,)
    The score at 0.
radius_ : float, or one for each score
    The radius, given or chosen.
promise_ : float, or one for each score
    The worst-case expected loss over the ball: an upper bound for data within it.
problem_ : Problem, or one for each score
    The problem that was solved, on its data: `problem_.worst_case()` is the adversary.
selection_ : RadiusSelection, or one for each score
    The scores of all radii, with radius="cv".
n_iter_ : int
    Iterations of the solver.
n_features_in_ : int
    The number of features in `fit`.
feature_names_in_ : array (n_features,)
    The columns, where `fit` saw a frame with names.

"""
"""The other parameters, and the attributes, of all estimators."""


@dataclass(frozen=True)
class Fitted:
    """A fitted score."""

    coef: np.ndarray
    """(d,)"""
    intercept: float
    problem: Problem
    """Solved on all samples."""
    selection: RadiusSelection | None
    """The choice of the radius by cross-validation, where that was asked for."""

    @property
    def iterations(self) -> int:
        """Iterations of the solver; 0 where it counts none."""
        solution = self.problem.solution
        return (solution and solution.iterations) or 0


@dataclass(frozen=True)
class WeightedSamples:
    """The samples of positive weight."""

    X: np.ndarray
    y: np.ndarray
    probabilities: np.ndarray | None
    """Their probabilities, (n,); None where they are equal."""
    counts: np.ndarray
    """Whether each sample of the caller has a positive weight, booleans."""

    @classmethod
    def select(cls, X: np.ndarray, y: np.ndarray, sample_weight: Any) -> WeightedSamples:
        """The samples without those of weight 0; weights count in proportion."""
        if sample_weight is None:
            return cls(X, y, None, np.ones(len(X), dtype=bool))
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        counts = weights > 0
        if not counts.any():
            raise ValueError("sample_weight is zero for all samples; some of them must count.")
        return cls(X[counts], y[counts], weights[counts] / weights.sum(), counts)

    def merge_repeated(self) -> WeightedSamples:
        """The samples with repeated ones merged, so that repeats and weights give equal digits."""
        classes, codes = np.unique(self.y, return_inverse=True)
        rows = np.column_stack([self.X, codes])
        distinct, inverse = np.unique(rows, axis=0, return_inverse=True)
        if self.probabilities is None and len(distinct) == len(rows):
            return self
        equal = np.full(len(rows), 1.0 / len(rows))
        shares = np.bincount(
            np.ravel(inverse), equal if self.probabilities is None else self.probabilities
        )
        return replace(
            self, X=distinct[:, :-1], y=classes[distinct[:, -1].astype(int)], probabilities=shares
        )

    def positions_of(self, indices: np.ndarray) -> np.ndarray:
        """The positions of the caller's samples among those of positive weight."""
        indices = np.arange(len(self.counts))[indices]
        return (np.cumsum(self.counts) - 1)[indices[self.counts[indices]]]


@dataclass(eq=False, repr=False, kw_only=True)
class RobustLinearModel(BaseEstimator):
    """A linear score whose worst-case expected loss over a Wasserstein ball is least."""

    def __init_subclass__(cls, **more: Any) -> None:
        """Add the shared parameters and attributes to the docstring of an estimator."""
        super().__init_subclass__(**more)
        summary, heading, example = cleandoc(cls.__doc__ or "").partition("Examples\n")
        if heading:
            summary, _, own = summary.partition("Parameters\n----------\n")
            parameters = f"{PARAMETERS}{own.strip()}\n".replace("\n\n", "\n") + MORE_PARAMETERS
            cls.__doc__ = f"{summary.rstrip()}\n\n{parameters}{heading}{example}"

    radius: float | Literal["cv"] = field(default=0.1, kw_only=False)
    cost: CostName | GroundCost = "l2"
    fit_intercept: bool = True
    radii: Any = None
    cv: Any = 5
    n_jobs: int | None = None

    n_features_in_: int = field(init=False)
    coef_: np.ndarray = field(init=False)
    intercept_: Any = field(init=False)

    @abstractmethod
    def _loss(self, target: Any, score: Any) -> Any:
        """The loss as a CVXPY expression in the target and the score."""

    @abstractmethod
    def _costs(self) -> tuple[str, ...]:
        """The names of the costs under which its worst case is known."""

    def _weighted_samples(
        self, X: np.ndarray, y: np.ndarray, sample_weight: Any
    ) -> WeightedSamples:
        """The samples of positive weight, merged unless folds tell repeated ones apart."""
        given = WeightedSamples.select(X, y, sample_weight)
        return given if self.radius == CROSS_VALIDATION else given.merge_repeated()

    def _fit_score(self, given: WeightedSamples, target: np.ndarray, folds: Any) -> Fitted:
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

    def _store(self, scores: list[Fitted]) -> None:
        """Set the attributes of the fitted scores: single values if there is one score."""
        self.problem_ = one_or_all([score.problem for score in scores])
        self.promise_ = one_or_all([score.problem.value for score in scores])
        self.radius_ = one_or_all([score.problem.radius for score in scores])
        self.n_iter_ = max(score.iterations for score in scores)
        self.__dict__.pop("selection_", None)
        if scores[0].selection is not None:
            self.selection_ = one_or_all([score.selection for score in scores])

    def _scores(self, X: Any) -> np.ndarray:
        """features @ coef_ + intercept_, (n,), or (n, k) for k scores."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        return X @ self.coef_.T + self.intercept_

    # -------------------------------------------------------------- what is given
    def _folds(self, X: np.ndarray, y: np.ndarray, given: WeightedSamples, stratified: bool) -> Any:
        """Pairs of indices where the radius is chosen by cross-validation; None if it is given."""
        if isinstance(self.radius, str) and self.radius == CROSS_VALIDATION:
            splits = check_cv(self.cv, y, classifier=stratified).split(X, y)
            return [tuple(given.positions_of(side) for side in split) for split in splits]
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
            cost = COSTS[checks.choice("cost", cost, COSTS)]
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
        """Whether the adversary leaves the targets as they are."""
        return True

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


# ------------------------------
# Robust classification: logistic regression, and the hinge loss of support vector machines


class RobustClassifier(ClassifierMixin, RobustLinearModel):
    """A linear score for two classes, or one against the rest for each of several."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit to features (n_samples, n_features) and their classes (n_samples,).

        sample_weight (n_samples,): what each sample counts, in proportion; equal by default.
        """
        X, y = validate_data(self, X, y, dtype=np.float64, copy=True)
        check_classification_targets(y)
        given = self._weighted_samples(X, y, sample_weight)
        self.classes_ = np.unique(given.y)
        if len(self.classes_) < 2:
            raise ValueError(
                f"{type(self).__name__} needs samples of at least 2 classes, got 1 class: "
                f"{self.classes_[0]}."
            )
        folds = self._folds(X, y, given, stratified=True)
        positive = self.classes_[1:] if len(self.classes_) == 2 else self.classes_
        scores = [
            self._fit_score(given, np.where(given.y == name, 1.0, -1.0), folds) for name in positive
        ]
        self.coef_ = np.array([score.coef for score in scores])
        self.intercept_ = np.array([score.intercept for score in scores])
        self._store(scores)
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """The scores: (n_samples,) for two classes, (n_samples, n_classes) for more."""
        scores = self._scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> np.ndarray:
        """The classes (n_samples,)."""
        scores = self.decision_function(X)
        return self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(1)]


class RobustLogisticRegression(RobustClassifier):
    """Logistic regression with the least worst-case log-loss over a Wasserstein ball.

    The adversary moves the features and leaves the classes as they are. With a norm that is
    `mean log-loss + radius * |coef|` in the dual norm: "l2" is a ridge without the square, "linf"
    the Lasso's penalty, and the constant in front of it is a distance. With the squared cost no
    exact worst case is known.

    Examples
    --------
    >>> import numpy as np
    >>> from wdro_model.estimators import RobustLogisticRegression
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 2))
    >>> y = np.where(X @ [1.0, -1.0] + rng.logistic(size=60) > 0, "yes", "no")
    >>> model = RobustLogisticRegression(radius=0.05).fit(X, y)
    >>> print(model.predict([[1.0, -1.0]]), model.predict_proba([[1.0, -1.0]]).round(2))
    ['yes'] [[0.18 0.82]]
    >>> print(f"mean log-loss at most {model.promise_:.2f} over the ball")
    mean log-loss at most 0.57 over the ball
    """

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probabilities (n_samples, n_classes) of the classes."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            return np.column_stack([expit(-scores), expit(scores)])
        shares = expit(scores)
        return shares / shares.sum(axis=1, keepdims=True)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """The logarithms of the probabilities (n_samples, n_classes) of the classes."""
        return np.log(self.predict_proba(X))

    def _loss(self, target: Any, score: Any) -> Any:
        return cp.logistic(-cp.multiply(target, score))

    def _costs(self) -> tuple[str, ...]:
        return ("l1", "l2", "linf")


class RobustHingeClassifier(RobustClassifier):
    """A classifier with the least worst-case hinge loss over a Wasserstein ball.

    The adversary moves the features and leaves the classes as they are. With a norm that is
    `mean max(0, 1 - margin) + radius * |coef|` in the dual norm, a support vector machine whose
    penalty is a norm and not its square; the constant in front of it is a distance.

    Examples
    --------
    >>> from wdro_model.estimators import RobustHingeClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 2))
    >>> y = X @ [1.0, -1.0] > 0.2 * rng.normal(size=60)
    >>> model = RobustHingeClassifier(radius=0.05).fit(X, y)
    >>> print(f"{model.score(X, y):.2f}", model.coef_.round(2))
    0.97 [[ 2.02 -1.9 ]]
    """

    def _loss(self, target: Any, score: Any) -> Any:
        return cp.pos(1 - cp.multiply(target, score))

    def _costs(self) -> tuple[str, ...]:
        return tuple(COSTS)


# ------------------------------
# Robust regression: of the mean, of the median, of any quantile


LOSSES = {"squared": cp.square, "absolute": cp.abs}
"""Losses of the residual, by the names that `loss` may have."""


@dataclass(eq=False, repr=False, kw_only=True)
class RobustRegressor(RegressorMixin, RobustLinearModel):
    """A linear prediction of a number."""

    labels: Labels = "fixed"

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit to features (n_samples, n_features) and targets (n_samples,).

        sample_weight (n_samples,): what each sample counts, in proportion; equal by default.
        """
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, copy=True)
        given = self._weighted_samples(X, y.astype(np.float64), sample_weight)
        score = self._fit_score(given, given.y, self._folds(X, y, given, stratified=False))
        self.coef_, self.intercept_ = score.coef, score.intercept
        self._store([score])
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The predictions (n_samples,)."""
        return self._scores(X)

    def _holds_labels(self) -> bool:
        return checks.choice("labels", self.labels, get_args(Labels)) == "fixed"


@dataclass(eq=False, repr=False, kw_only=True)
class RobustLinearRegression(RobustRegressor):
    """Linear regression with the least worst-case squared or absolute error over a ball.

    With the squared loss and the squared cost that is the square of
    `sqrt(mean squared error) + sqrt(radius) * |coef|`, a relative of the square-root Lasso; with
    the absolute loss and a norm it is `mean absolute error + radius * |coef|` in the dual norm.

    Parameters
    ----------
    loss : "squared" or "absolute"
        The squared loss needs the squared cost: under a norm its worst case is infinite.
    labels : "fixed" or "uncertain"
        Whether the adversary moves the targets too, at the cost of a move of a feature.

    Examples
    --------
    >>> import numpy as np
    >>> from wdro_model.estimators import RobustLinearRegression
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(40, 3))
    >>> y = X @ [1.0, -1.0, 0.0] + 2.0 + 0.5 * rng.normal(size=40)
    >>> model = RobustLinearRegression(radius=0.01).fit(X, y)
    >>> print(model.coef_.round(2), f"{model.intercept_:.2f}, {model.score(X, y):.2f}")
    [ 1.08 -1.06  0.07] 1.90, 0.91
    """

    loss: LossName = "squared"
    cost: CostName | GroundCost = "squared"

    def _loss(self, target: Any, score: Any) -> Any:
        return LOSSES[checks.choice("loss", self.loss, LOSSES)](target - score)

    def _costs(self) -> tuple[str, ...]:
        return ("squared",) if self.loss == "squared" else tuple(COSTS)


@dataclass(eq=False, repr=False, kw_only=True)
class RobustQuantileRegressor(RobustRegressor):
    """Linear regression of a quantile with the least worst-case pinball loss over a ball.

    The loss of a residual r is `max(quantile * r, (quantile - 1) * r)`; with a norm its worst case
    is the mean plus `radius * max(quantile, 1 - quantile) * |coef|` in the dual norm.

    Parameters
    ----------
    quantile : float
        Between 0 and 1; 0.5 is the median.
    labels : "fixed" or "uncertain"
        Whether the adversary moves the targets too, at the cost of a move of a feature.

    Examples
    --------
    >>> from wdro_model.estimators import RobustQuantileRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 2))
    >>> y = X @ [1.0, -1.0] + rng.exponential(size=200)
    >>> model = RobustQuantileRegressor(radius=0.01, quantile=0.9).fit(X, y)
    >>> print(f"{np.mean(y <= model.predict(X)):.2f} of the targets lie below")
    0.90 of the targets lie below
    """

    quantile: float = 0.5

    def _loss(self, target: Any, score: Any) -> Any:
        hint = "0.5 is the median"
        q = checks.number("quantile", self.quantile, low=0, high=1, open=True, hint=hint)
        return cp.maximum(q * (target - score), (q - 1) * (target - score))

    def _costs(self) -> tuple[str, ...]:
        return tuple(COSTS)
