"""Robust regression: of the mean, of the median, of any quantile."""

from __future__ import annotations

from numbers import Real
from typing import Any, Literal, Self

import cvxpy as cp
import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import validate_data

from wdro_model.errors import unknown_name
from wdro_model.estimators.robust_linear_model import (
    COSTS,
    CostName,
    Labels,
    LossName,
    RobustLinearModel,
)
from wdro_model.uncertainty.costs import GroundCost

LOSSES = {"squared": cp.square, "absolute": cp.abs}
"""Of the residual, by the names that `loss` may have."""


class RobustRegressor(RegressorMixin, RobustLinearModel):
    """A linear prediction of a number."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit to features (n_samples, n_features) and targets (n_samples,).

        sample_weight (n_samples,): what each sample counts, in proportion; equal by default.
        """
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, copy=True)
        given = self._weighed(X, y.astype(np.float64), sample_weight)
        found = self._fitted(given, given.y, self._folds(X, y, given, stratified=False))
        self.coef_, self.intercept_ = found.coef, found.intercept
        self._keep([found])
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The predictions (n_samples,)."""
        return self._scores(X)


class RobustLinearRegression(RobustRegressor):
    """Linear regression with the least worst-case squared or absolute error over a ball.

    With the squared loss and the squared cost that is the square of
    `sqrt(mean squared error) + sqrt(radius) * |coef|`, a relative of the square-root Lasso; with
    the absolute loss and a norm it is `mean absolute error + radius * |coef|` in the dual norm.

    Parameters
    ----------
    radius : float or "cv"
        How far the data may move: a bound on the transport cost, the square of a distance if the
        cost is "squared". "cv" chooses it by cross-validation.
    loss : "squared" or "absolute"
        The squared loss needs the squared cost: under a norm its worst case is infinite.
    cost : "squared", "l1", "l2", "linf" or a ground cost
        What a move of the features costs: the square of its length, or a norm of it. A ground cost
        with weights for the features, such as `costs.SquaredEuclidean(weights="standardize")`.
    labels : "fixed" or "uncertain"
        May the adversary move the targets too? A move of the target costs what one of a feature
        does.
    fit_intercept : bool
        Without it the prediction at 0 is 0.
    radii : increasing numbers, optional
        Those to choose among with radius="cv"; by default eleven from the scale of the data, 0 the
        first.
    cv : int, splitter or pairs of indices
        The folds with radius="cv", as elsewhere in scikit-learn.
    n_jobs : int, optional
        Processes for the folds.

    Attributes
    ----------
    coef_ : array (n_features,)
        What each feature adds to the prediction.
    intercept_ : float
        The prediction at 0.
    radius_ : float
        The radius, given or chosen.
    promise_ : float
        The worst-case expected loss over the ball: what is promised for data within it.
    problem_ : Problem
        The problem that was solved, on its data: `problem_.worst_case()` is the adversary.
    selection_ : RadiusSelection
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
    >>> from wdro_model.estimators import RobustLinearRegression
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(40, 3))
    >>> y = X @ [1.0, -1.0, 0.0] + 2.0 + 0.5 * rng.normal(size=40)
    >>> model = RobustLinearRegression(radius=0.01).fit(X, y)
    >>> print(model.coef_.round(2), f"{model.intercept_:.2f}, {model.score(X, y):.2f}")
    [ 1.08 -1.06  0.07] 1.90, 0.91
    """

    def __init__(
        self,
        radius: float | Literal["cv"] = 0.1,
        *,
        loss: LossName = "squared",
        cost: CostName | GroundCost = "squared",
        labels: Labels = "fixed",
        fit_intercept: bool = True,
        radii: Any = None,
        cv: Any = 5,
        n_jobs: int | None = None,
    ) -> None:
        self.radius = radius
        self.loss = loss
        self.cost = cost
        self.labels = labels
        self.fit_intercept = fit_intercept
        self.radii = radii
        self.cv = cv
        self.n_jobs = n_jobs

    def _loss(self, target: Any, score: Any) -> Any:
        if self.loss not in LOSSES:
            raise ValueError(unknown_name("loss", self.loss, LOSSES))
        return LOSSES[self.loss](target - score)

    def _costs(self) -> tuple[str, ...]:
        return ("squared",) if self.loss == "squared" else tuple(COSTS)


class RobustQuantileRegressor(RobustRegressor):
    """Linear regression of a quantile with the least worst-case pinball loss over a ball.

    The loss of a residual r is `max(quantile * r, (quantile - 1) * r)`; with a norm its worst case
    is the mean plus `radius * max(quantile, 1 - quantile) * |coef|` in the dual norm.

    Parameters
    ----------
    radius : float or "cv"
        How far the data may move: a bound on the transport cost. "cv" chooses it by
        cross-validation.
    quantile : float
        Between 0 and 1; 0.5 is the median.
    cost : "l2", "l1", "linf", "squared" or a ground cost
        What a move of the features costs: a norm of it, or the square of its length. A ground cost
        with weights for the features, such as `costs.Norm(1, weights="standardize")`.
    labels : "fixed" or "uncertain"
        May the adversary move the targets too? A move of the target costs what one of a feature
        does.
    fit_intercept : bool
        Without it the prediction at 0 is 0.
    radii : increasing numbers, optional
        Those to choose among with radius="cv"; by default eleven from the scale of the data, 0 the
        first.
    cv : int, splitter or pairs of indices
        The folds with radius="cv", as elsewhere in scikit-learn.
    n_jobs : int, optional
        Processes for the folds.

    Attributes
    ----------
    coef_ : array (n_features,)
        What each feature adds to the prediction.
    intercept_ : float
        The prediction at 0.
    radius_ : float
        The radius, given or chosen.
    promise_ : float
        The worst-case expected loss over the ball: what is promised for data within it.
    problem_ : Problem
        The problem that was solved, on its data: `problem_.worst_case()` is the adversary.
    selection_ : RadiusSelection
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
    >>> from wdro_model.estimators import RobustQuantileRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 2))
    >>> y = X @ [1.0, -1.0] + rng.exponential(size=200)
    >>> model = RobustQuantileRegressor(radius=0.01, quantile=0.9).fit(X, y)
    >>> print(f"{np.mean(y <= model.predict(X)):.2f} of the targets lie below")
    0.90 of the targets lie below
    """

    def __init__(
        self,
        radius: float | Literal["cv"] = 0.1,
        *,
        quantile: float = 0.5,
        cost: CostName | GroundCost = "l2",
        labels: Labels = "fixed",
        fit_intercept: bool = True,
        radii: Any = None,
        cv: Any = 5,
        n_jobs: int | None = None,
    ) -> None:
        self.radius = radius
        self.quantile = quantile
        self.cost = cost
        self.labels = labels
        self.fit_intercept = fit_intercept
        self.radii = radii
        self.cv = cv
        self.n_jobs = n_jobs

    def _loss(self, target: Any, score: Any) -> Any:
        q = self.quantile
        if not isinstance(q, Real) or isinstance(q, bool) or not 0 < q < 1:
            raise ValueError(
                f"quantile must be a number between 0 and 1, got {q!r}; 0.5 is the median."
            )
        return cp.maximum(q * (target - score), (q - 1) * (target - score))

    def _costs(self) -> tuple[str, ...]:
        return tuple(COSTS)
