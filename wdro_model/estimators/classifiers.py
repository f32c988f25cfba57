"""Robust classification: logistic regression, and the hinge loss of support vector machines."""

from __future__ import annotations

from typing import Any, Literal, Self

import cvxpy as cp
import numpy as np
from scipy.special import expit
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from wdro_model.estimators.robust_linear_model import COSTS, CostName, RobustLinearModel
from wdro_model.uncertainty.costs import GroundCost


class RobustClassifier(ClassifierMixin, RobustLinearModel):
    """A linear score for two classes, or one against the rest for each of several."""

    def __init__(
        self,
        radius: float | Literal["cv"] = 0.1,
        *,
        cost: CostName | GroundCost = "l2",
        fit_intercept: bool = True,
        radii: Any = None,
        cv: Any = 5,
        n_jobs: int | None = None,
    ) -> None:
        self.radius = radius
        self.cost = cost
        self.fit_intercept = fit_intercept
        self.radii = radii
        self.cv = cv
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit to features (n_samples, n_features) and their classes (n_samples,).

        sample_weight (n_samples,): what each sample counts, in proportion; equal by default.
        """
        X, y = validate_data(self, X, y, dtype=np.float64, copy=True)
        check_classification_targets(y)
        given = self._weighed(X, y, sample_weight)
        self.classes_ = np.unique(given.y)
        if len(self.classes_) < 2:
            raise ValueError(
                f"{type(self).__name__} needs samples of at least 2 classes, got 1 class: "
                f"{self.classes_[0]}."
            )
        folds = self._folds(X, y, given, stratified=True)
        ahead = self.classes_[1:] if len(self.classes_) == 2 else self.classes_
        found = [self._fitted(given, np.where(given.y == name, 1.0, -1.0), folds) for name in ahead]
        self.coef_ = np.array([one.coef for one in found])
        self.intercept_ = np.array([one.intercept for one in found])
        self._keep(found)
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
    the Lasso's penalty, and the constant in front of it is a distance.

    Parameters
    ----------
    radius : float or "cv"
        How far the features may move, on average: a bound on the transport cost. "cv" chooses it
        by cross-validation.
    cost : "l2", "l1", "linf" or a ground cost
        What a move of the features costs: a norm of it. A ground cost with weights for the
        features, such as `costs.Norm(2, weights="standardize")`.
    fit_intercept : bool
        Without it the score at 0 is 0.
    radii : increasing numbers, optional
        Those to choose among with radius="cv"; by default eleven from the scale of the data, 0 the
        first.
    cv : int, splitter or pairs of indices
        The folds with radius="cv", as elsewhere in scikit-learn: stratified if it is a number.
    n_jobs : int, optional
        Processes for the folds.

    Attributes
    ----------
    classes_ : array (n_classes,)
        In increasing order; a positive score of two is for the second.
    coef_ : array (1, n_features)
        What each feature adds to the score; a row for each class where there are more than two.
    intercept_ : array (1,)
        The score at 0; one for each class where there are more than two.
    radius_ : float, or one for each class against the rest
        The radius, given or chosen.
    promise_ : float, or one for each class against the rest
        The worst-case expected loss over the ball: what is promised for data within it.
    problem_ : Problem, or one for each class against the rest
        The problem that was solved, on its data: `problem_.worst_case()` is the adversary.
    selection_ : RadiusSelection, or one for each class against the rest
        The scores of all radii, with radius="cv".
    n_iter_ : int
        Iterations of the solver.
    n_features_in_ : int
        How many features `fit` saw.
    feature_names_in_ : array (n_features,)
        The columns, where `fit` saw a frame with names.

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
        """Their logarithms (n_samples, n_classes)."""
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

    Parameters
    ----------
    radius : float or "cv"
        How far the features may move, on average: a bound on the transport cost, the square of a
        distance if the cost is "squared". "cv" chooses it by cross-validation.
    cost : "l2", "l1", "linf", "squared" or a ground cost
        What a move of the features costs: a norm of it, or the square of its length. A ground cost
        with weights for the features, such as `costs.Norm(2, weights="standardize")`.
    fit_intercept : bool
        Without it the score at 0 is 0.
    radii : increasing numbers, optional
        Those to choose among with radius="cv"; by default eleven from the scale of the data, 0 the
        first.
    cv : int, splitter or pairs of indices
        The folds with radius="cv", as elsewhere in scikit-learn: stratified if it is a number.
    n_jobs : int, optional
        Processes for the folds.

    Attributes
    ----------
    classes_ : array (n_classes,)
        In increasing order; a positive score of two is for the second.
    coef_ : array (1, n_features)
        What each feature adds to the score; a row for each class where there are more than two.
    intercept_ : array (1,)
        The score at 0; one for each class where there are more than two.
    radius_ : float, or one for each class against the rest
        The radius, given or chosen.
    promise_ : float, or one for each class against the rest
        The worst-case expected loss over the ball: what is promised for data within it.
    problem_ : Problem, or one for each class against the rest
        The problem that was solved, on its data: `problem_.worst_case()` is the adversary.
    selection_ : RadiusSelection, or one for each class against the rest
        The scores of all radii, with radius="cv".
    n_iter_ : int
        Iterations of the solver.
    n_features_in_ : int
        How many features `fit` saw.
    feature_names_in_ : array (n_features,)
        The columns, where `fit` saw a frame with names.

    Examples
    --------
    >>> import numpy as np
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
