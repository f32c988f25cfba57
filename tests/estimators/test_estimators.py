"""Estimators: scikit-learn's conventions, values by programs written by hand, bad input."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import get_args

import cvxpy as cp
import numpy as np
import pytest
from sklearn.base import clone, is_classifier
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression, LogisticRegression, QuantileRegressor
from sklearn.model_selection import (
    GridSearchCV,
    KFold,
    StratifiedKFold,
    cross_val_score,
    train_test_split,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import wdro_model as wdro
from wdro_model import estimators
from wdro_model.estimators import (
    RobustHingeClassifier,
    RobustLinearRegression,
    RobustLogisticRegression,
    RobustQuantileRegressor,
)
from wdro_model.estimators.linear_models import COSTS, LOSSES, CostName, LossName

ROOT = Path(__file__).parent.parent.parent
DUAL = {"l1": "inf", "l2": 2, "linf": 1}
ALL = [getattr(estimators, name)() for name in estimators.__all__]
CLASSIFIERS = (RobustLogisticRegression, RobustHingeClassifier)


def test_names_are_those_that_are_known():
    assert set(get_args(CostName)) == set(COSTS)
    assert set(get_args(LossName)) == set(LOSSES)


@parametrize_with_checks(ALL)
def test_conventions_of_scikit_learn(estimator, check):
    check(estimator)


# ------------------------------------------------------------------ data
rng = np.random.default_rng(0)
X = rng.normal(size=(40, 3))
RESPONSE = X @ [1.0, -2.0, 0.0] + 1.5 + rng.normal(size=40)
LABELS = np.where(X @ [1.0, -1.0, 0.5] + 0.5 + rng.logistic(size=40) > 0, "yes", "no")
SIGNS = np.where(LABELS == "yes", 1.0, -1.0)


def target_of(estimator):
    return LABELS if is_classifier(estimator) else RESPONSE


# ------------------------------------------------------------------ values
def by_hand(losses, radius, cost, lipschitz=1.0, labels="fixed"):
    """The least mean loss + radius * lipschitz * |coef|, the norm dual to the cost: by CVXPY."""
    coef, intercept = cp.Variable(3), cp.Variable()
    slope = cp.hstack([coef, -1.0]) if labels == "uncertain" else coef
    value = cp.sum(losses(X @ coef + intercept)) / len(X)
    value += radius * lipschitz * cp.norm(slope, DUAL[cost])
    problem = cp.Problem(cp.Minimize(value))
    problem.solve(solver="CLARABEL")
    return problem.value, coef.value, float(intercept.value)


@pytest.mark.parametrize("cost", DUAL)
def test_logistic_regression_is_the_mean_log_loss_and_the_dual_norm(cost):
    model = RobustLogisticRegression(0.05, cost=cost).fit(X, LABELS)
    value, coef, intercept = by_hand(lambda s: cp.logistic(cp.multiply(-SIGNS, s)), 0.05, cost)
    assert model.promise_ == pytest.approx(value, abs=1e-6)
    np.testing.assert_allclose(model.coef_, [coef], atol=2e-3)
    np.testing.assert_allclose(model.intercept_, [intercept], atol=2e-3)
    probabilities = 1 / (1 + np.exp(-(X @ coef + intercept)))
    np.testing.assert_allclose(model.predict_proba(X)[:, 1], probabilities, atol=2e-3)


@pytest.mark.parametrize("cost", DUAL)
def test_hinge_is_the_mean_hinge_loss_and_the_dual_norm(cost):
    model = RobustHingeClassifier(0.05, cost=cost).fit(X, LABELS)
    value, _, _ = by_hand(lambda s: cp.pos(1 - cp.multiply(SIGNS, s)), 0.05, cost)
    assert model.promise_ == pytest.approx(value, abs=1e-6)
    hinge = np.maximum(0, 1 - SIGNS * model.decision_function(X)).mean()
    norm = np.linalg.norm(model.coef_[0], ord=float(DUAL[cost]))
    assert hinge + 0.05 * norm == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("labels", ["fixed", "uncertain"])
@pytest.mark.parametrize("cost", DUAL)
def test_absolute_loss_is_the_mean_error_and_the_dual_norm(cost, labels):
    model = RobustLinearRegression(0.1, loss="absolute", cost=cost, labels=labels)
    model.fit(X, RESPONSE)
    value, _, _ = by_hand(lambda s: cp.abs(RESPONSE - s), 0.1, cost, labels=labels)
    assert model.promise_ == pytest.approx(value, abs=1e-6)
    slope = np.append(model.coef_, -1.0) if labels == "uncertain" else model.coef_
    error = np.abs(RESPONSE - model.predict(X)).mean()
    norm = np.linalg.norm(slope, ord=float(DUAL[cost]))
    assert error + 0.1 * norm == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("labels", ["fixed", "uncertain"])
def test_squared_loss_is_the_square_of_root_mean_error_and_norm(labels):
    model = RobustLinearRegression(0.04, labels=labels).fit(X, RESPONSE)
    coef, intercept = cp.Variable(3), cp.Variable()
    slope = cp.hstack([coef, -1.0]) if labels == "uncertain" else coef
    root = cp.norm(RESPONSE - X @ coef - intercept) / np.sqrt(len(X)) + 0.2 * cp.norm(slope)
    cp.Problem(cp.Minimize(root)).solve(solver="CLARABEL")
    assert model.promise_ == pytest.approx(root.value**2, abs=1e-6)
    np.testing.assert_allclose(model.coef_, coef.value, atol=1e-4)
    np.testing.assert_allclose(model.predict(X), X @ coef.value + intercept.value, atol=1e-3)


@pytest.mark.parametrize("quantile", [0.2, 0.9])
@pytest.mark.parametrize("cost", DUAL)
def test_quantiles_are_the_mean_pinball_loss_and_the_dual_norm(cost, quantile):
    model = RobustQuantileRegressor(0.1, quantile=quantile, cost=cost).fit(X, RESPONSE)

    def pinball(score):
        return cp.maximum(quantile * (RESPONSE - score), (quantile - 1) * (RESPONSE - score))

    value, _, _ = by_hand(pinball, 0.1, cost, max(quantile, 1 - quantile))
    assert model.promise_ == pytest.approx(value, abs=1e-6)


def test_squared_cost_for_hinge_is_the_dual_of_transport():
    """min_l l r + mean max(0, 1 - m + |coef|^2 / 4 l), perspectives written out."""
    model = RobustHingeClassifier(0.05, cost="squared").fit(X, LABELS)
    coef, intercept, price, rate = cp.Variable(3), cp.Variable(), cp.Variable(), cp.Variable()
    margin = cp.multiply(SIGNS, X @ coef + intercept)
    value = 0.05 * price + cp.sum(cp.pos(1 - margin + rate)) / len(X)
    cp.Problem(cp.Minimize(value), [cp.quad_over_lin(coef, 4 * price) <= rate]).solve("CLARABEL")
    assert model.promise_ == pytest.approx(value.value, abs=1e-5)


def test_radius_zero_is_the_plain_estimator():
    plain = LinearRegression().fit(X, RESPONSE)
    model = RobustLinearRegression(0.0).fit(X, RESPONSE)
    np.testing.assert_allclose(model.coef_, plain.coef_, atol=1e-6)
    assert model.intercept_ == pytest.approx(plain.intercept_, abs=1e-6)
    maximum_likelihood = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(X, LABELS)
    model = RobustLogisticRegression(0.0).fit(X, LABELS)
    np.testing.assert_allclose(model.coef_, maximum_likelihood.coef_, atol=1e-4)
    lasso = QuantileRegressor(quantile=0.3, alpha=0.07).fit(X, RESPONSE)
    model = RobustQuantileRegressor(0.1, quantile=0.3, cost="linf").fit(X, RESPONSE)
    np.testing.assert_allclose(model.coef_, lasso.coef_, atol=1e-5)


def test_without_an_intercept_the_score_at_zero_is_zero():
    for estimator in ALL:
        model = clone(estimator).set_params(fit_intercept=False).fit(X, target_of(estimator))
        assert np.all(model.intercept_ == 0.0)
        coef, shift = np.ravel(model.coef_), X @ np.ravel(model.coef_)
        score = getattr(model, "decision_function", model.predict)
        np.testing.assert_allclose(score(X), shift)
        assert np.all(score(np.zeros((1, 3))) == 0.0)
        assert coef.shape == (3,)


def test_the_promise_is_the_expected_loss_of_the_adversary():
    for estimator in ALL:
        model = clone(estimator).fit(X, target_of(estimator))
        assert model.problem_.robust_value() == pytest.approx(model.promise_, abs=1e-6)
        adversary = model.problem_.worst_case()
        assert adversary.expected_loss == pytest.approx(model.promise_, rel=1e-4)
        assert adversary.transport_cost <= model.radius_ * (1 + 1e-6)


def test_weights_of_a_cost_are_those_of_the_features():
    heavy = wdro.costs.Norm(2, weights=[1.0, 1.0, np.inf])
    free = RobustLogisticRegression(0.1, cost=heavy).fit(X, LABELS)
    losses = np.log1p(np.exp(-SIGNS * free.decision_function(X)))
    penalty = 0.1 * np.linalg.norm(free.coef_[0, :2])
    assert free.promise_ == pytest.approx(losses.mean() + penalty, abs=1e-6)


@pytest.mark.parametrize("labels", ["fixed", "uncertain"])
def test_standardised_weights_are_features_in_their_own_units(labels):
    units = np.array([1.0, 100.0, 0.01])
    cost = wdro.costs.SquaredEuclidean(weights="standardize")
    model = RobustLinearRegression(0.05, cost=cost, labels=labels)
    one, other = clone(model).fit(X, RESPONSE), clone(model).fit(X * units, RESPONSE)
    np.testing.assert_allclose(one.coef_, other.coef_ * units, atol=1e-3)
    assert one.promise_ == pytest.approx(other.promise_, rel=1e-5)
    if labels == "fixed":
        scaled = RobustLinearRegression(0.05).fit((X - X.mean(0)) / X.std(0), RESPONSE)
        assert one.promise_ == pytest.approx(scaled.promise_, rel=1e-5)


@pytest.mark.parametrize(("fold", "radius"), [(2, 0.003), (3, 0.0001), (4, 0.001)])
def test_small_radii_on_classes_that_a_plane_separates(fold, radius):
    """Close to the optimum a move gains 1e-8, which stalled the conic solver."""
    tumours, kinds = load_breast_cancer(return_X_y=True)
    some, _ = train_test_split(
        np.arange(len(kinds)), train_size=0.7, random_state=0, stratify=kinds
    )
    scaled, kinds = StandardScaler().fit_transform(tumours[some[:100]]), kinds[some[:100]]
    train = list(StratifiedKFold(5).split(scaled, kinds))[fold][0]
    model = RobustLogisticRegression(radius).fit(scaled[train], kinds[train])
    coef, intercept = cp.Variable(30), cp.Variable()
    margins = cp.multiply(2 * kinds[train] - 1, scaled[train] @ coef + intercept)
    value = cp.sum(cp.logistic(-margins)) / len(train) + radius * cp.norm(coef)
    cp.Problem(cp.Minimize(value)).solve(solver="CLARABEL")
    assert model.promise_ == pytest.approx(value.value, rel=1e-5)


# ------------------------------------------------------------------ several classes
def test_several_classes_are_one_against_the_rest():
    flowers, kinds = load_iris(return_X_y=True)
    for owner in CLASSIFIERS:
        model = owner(0.02).fit(flowers, kinds)
        assert model.coef_.shape == (3, 4)
        assert model.promise_.shape == (3,)
        assert len(model.problem_) == 3
        assert model.score(flowers, kinds) > 0.9
        alone = owner(0.02).fit(flowers, kinds == 2)
        np.testing.assert_allclose(alone.coef_[0], model.coef_[2], atol=1e-6)
        assert alone.promise_ == pytest.approx(model.promise_[2])
    probabilities = RobustLogisticRegression(0.02).fit(flowers, kinds).predict_proba(flowers)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)


# ------------------------------------------------------------------ the radius by cross-validation
RADII = [0.01, 0.1, 1.0]


@pytest.mark.parametrize("estimator", ALL, ids=lambda estimator: type(estimator).__name__)
def test_the_radius_by_cross_validation_is_that_of_a_loop(estimator):
    y = target_of(estimator)
    model = clone(estimator).set_params(radius="cv", radii=RADII, cv=4).fit(X, y)
    splitter = StratifiedKFold(4) if is_classifier(estimator) else KFold(4)
    scores = []
    for radius in RADII:
        folds = []
        for train, test in splitter.split(X, y):
            fitted = clone(estimator).set_params(radius=radius).fit(X[train], y[train])
            held_out = {
                p: X[test] if p.name() == "features" else (SIGNS if y is LABELS else y)[test]
                for p in fitted.problem_.uncertain_parameters()
            }
            folds.append(fitted.problem_.losses(held_out).mean())
        scores.append(np.mean(folds))
    assert model.radius_ == RADII[int(np.argmin(scores))]
    np.testing.assert_allclose(model.selection_.mean, scores, rtol=1e-3)
    same = clone(estimator).set_params(radius=model.radius_).fit(X, y)
    np.testing.assert_allclose(model.coef_, same.coef_, atol=1e-4)
    assert model.promise_ == pytest.approx(same.promise_, abs=1e-6)
    assert not hasattr(model.set_params(radius=0.1, radii=None).fit(X, y), "selection_")


def test_each_class_has_a_radius_of_its_own():
    flowers, kinds = load_iris(return_X_y=True)
    model = RobustHingeClassifier("cv", radii=[0.001, 1.0], cv=3).fit(flowers, kinds)
    assert model.radius_.shape == (3,)
    assert len(model.selection_) == 3


def test_radii_come_from_the_data_by_default():
    model = RobustLinearRegression("cv").fit(X, RESPONSE)
    assert len(model.selection_.radii) == 11
    assert model.radius_ in model.selection_.radii


# ------------------------------------------------------------------ among the tools of scikit-learn
def test_pipelines_searches_clones_and_pickles():
    pipeline = make_pipeline(StandardScaler(), RobustLogisticRegression())
    grid = {"robustlogisticregression__radius": [0.01, 0.5]}
    search = GridSearchCV(pipeline, grid, cv=3, scoring="neg_log_loss").fit(X * 100, LABELS)
    assert search.best_params_["robustlogisticregression__radius"] in (0.01, 0.5)
    again = pickle.loads(pickle.dumps(search.best_estimator_))
    np.testing.assert_array_equal(again.predict_proba(X), search.predict_proba(X))
    assert again[-1].problem_.worst_case().transport_cost > 0
    assert len(cross_val_score(RobustLinearRegression(), X, RESPONSE, cv=3)) == 3
    cost = wdro.costs.Norm(1, weights=[1.0, 2.0, 3.0])
    assert clone(RobustHingeClassifier(cost=cost)).fit(X, LABELS).score(X, LABELS) > 0.5


def test_columns_of_a_frame_are_kept_by_name():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=["age", "height", "weight"])
    model = RobustLinearRegression().fit(frame, RESPONSE)
    assert list(model.feature_names_in_) == ["age", "height", "weight"]
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["height", "age", "weight"]])


def test_what_was_solved_does_not_change_with_the_array():
    data = X.copy()
    model = RobustLinearRegression().fit(data, RESPONSE)
    data[:] = 0.0
    assert model.problem_.robust_value() == pytest.approx(model.promise_, abs=1e-6)


# ------------------------------------------------------------------ mistakes
@pytest.mark.parametrize(
    ("model", "message"),
    [
        (RobustLinearRegression("cvv"), "radius='cvv' of RobustLinearRegression must be a number"),
        (RobustLinearRegression(-1.0), "must be a nonnegative finite number, got -1.0"),
        (RobustLinearRegression(loss="huber"), "unknown loss 'huber'"),
        (RobustLinearRegression(loss="absolut"), "Did you mean 'absolute'"),
        (RobustLinearRegression(labels="free"), "unknown labels 'free'"),
        (RobustLinearRegression(cost="l3"), "unknown cost 'l3'"),
        (RobustLinearRegression(cost=2), "must be one of 'l1', 'l2', 'linf', 'squared', or a cost"),
        (RobustLinearRegression(cost="l2"), "(?s)no worst case.*use cost='squared'"),
        (RobustLinearRegression("cv", cost="l2"), "(?s)no worst case.*use cost='squared'"),
        (RobustLinearRegression(0.0, cost="l2"), "(?s)no worst case.*use cost='squared'"),
        (RobustLinearRegression(radii=[0.1, 0.2]), "radii= .* with radius='cv', but radius=0.1"),
        (RobustLinearRegression("cv", radii=[0.2, 0.1]), "radii must increase"),
        (RobustLinearRegression("cv", cv=100), "n_splits=100"),
        (RobustLinearRegression(cost=wdro.costs.Mahalanobis(np.eye(4))), "a cost with weights"),
        (
            RobustLinearRegression(
                cost=wdro.costs.SquaredEuclidean(weights={wdro.UncertainParameter(3): 1.0})
            ),
            "are those of its features",
        ),
        (
            RobustLinearRegression(cost=wdro.costs.SquaredEuclidean(weights=[1.0, 2.0])),
            r"weights of 'features' have shape \(2,\), expected a number or shape \(3,\)",
        ),
        (RobustQuantileRegressor(quantile=1.0), "quantile must be a number between 0 and 1"),
        (RobustQuantileRegressor(quantile="median"), "got 'median'; 0.5 is the median"),
        (RobustLogisticRegression(cost="squared"), "(?s)no worst.*use cost='l1' or 'l2' or 'linf'"),
    ],
    ids=lambda given: repr(given)[:60],
)
def test_bad_parameters_are_refused_with_the_way_out(model, message):
    with pytest.raises(ValueError, match=message):
        model.fit(X, target_of(model))


def test_one_class_is_refused():
    with pytest.raises(ValueError, match="at least 2 classes, got 1 class: yes"):
        RobustLogisticRegression().fit(X, np.repeat("yes", 40))


def test_numbers_are_no_classes():
    with pytest.raises(ValueError, match="Unknown label type: continuous"):
        RobustLogisticRegression().fit(X, RESPONSE)


def test_an_inaccurate_solve_is_said(monkeypatch):
    solve = wdro.Problem.solve

    def inaccurate(self, *arguments, **options):
        value = solve(self, *arguments, **options)
        self.status = cp.OPTIMAL_INACCURATE
        return value

    monkeypatch.setattr(wdro.Problem, "solve", inaccurate)
    with pytest.warns(ConvergenceWarning, match="'optimal_inaccurate'.*; scale the features"):
        RobustLinearRegression().fit(X, RESPONSE)


def test_without_scikit_learn_the_error_says_what_to_install():
    code = (
        "import sys\n"
        "sys.modules['sklearn'] = None\n"
        "from wdro_model import *\n"
        "import wdro_model as wdro\n"
        "print(dir(wdro.estimators))\n"
        "from wdro_model.estimators import RobustLinearRegression\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert "RobustQuantileRegressor" in result.stdout
    assert "ImportError: RobustLinearRegression needs scikit-learn" in result.stderr
    assert "pip install 'wdro_model[sklearn]'" in result.stderr
    with pytest.raises(AttributeError, match="no attribute 'RobustLasso'"):
        estimators.RobustLasso  # noqa: B018


# ------------------------------------------------------------------ weights of samples
@pytest.mark.parametrize(
    "model",
    [
        RobustLogisticRegression(0.05),
        RobustHingeClassifier(0.05, cost="squared"),
        RobustQuantileRegressor(0.05, quantile=0.8),
        RobustLinearRegression(0.05, labels="uncertain"),
    ],
)
def test_weights_are_repeated_samples(model):
    rng = np.random.default_rng(3)
    X, counts = rng.normal(size=(20, 2)), rng.integers(0, 4, size=20)
    y = X @ [1.0, -1.0] + rng.normal(size=20)
    if is_classifier(model):
        y = np.where(y > 0, "up", "down")
    weighted = clone(model).fit(X, y, sample_weight=0.5 * counts)
    repeated = clone(model).fit(np.repeat(X, counts, axis=0), np.repeat(y, counts))
    assert weighted.promise_ == pytest.approx(repeated.promise_, rel=1e-10)
    assert weighted.coef_ == pytest.approx(repeated.coef_, rel=1e-8)
    assert weighted.problem_.worst_case().expected_loss == pytest.approx(
        weighted.promise_, rel=1e-4
    )


def test_weights_count_in_the_folds_of_a_radius():
    rng = np.random.default_rng(4)
    X, counts = rng.normal(size=(24, 2)), rng.integers(0, 3, size=24)
    y = X @ [1.0, -1.0] + rng.normal(size=24)
    place = np.arange(24) % 3
    found = []
    for weights, times in ((counts, np.ones(24, dtype=int)), (None, counts)):
        where = np.repeat(place, times)
        folds = [(np.flatnonzero(where != k), np.flatnonzero(where == k)) for k in range(3)]
        model = RobustLinearRegression("cv", radii=[0.01, 0.1], cv=folds)
        model.fit(np.repeat(X, times, axis=0), np.repeat(y, times), sample_weight=weights)
        found.append(model)
    weighted, repeated = found
    assert weighted.selection_.scores == pytest.approx(repeated.selection_.scores, rel=1e-5)
    assert weighted.coef_ == pytest.approx(repeated.coef_, rel=1e-4)


def test_bad_weights_are_refused():
    X, y = np.eye(4), np.arange(4.0)
    with pytest.raises(ValueError, match="zero"):
        RobustLinearRegression().fit(X, y, sample_weight=np.zeros(4))
    with pytest.raises(ValueError, match=r"[Nn]egative"):
        RobustLinearRegression().fit(X, y, sample_weight=[1, 1, 1, -1])


def test_every_fold_has_a_score_at_every_radius():
    """Also with many features, where the program of one fold is solved again for the next."""
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(60, 30)), rng.normal(size=60) > 0
    model = RobustLogisticRegression("cv", radii=[0.01, 0.1], cv=KFold(5)).fit(features, labels)
    assert np.isfinite(model.selection_.scores).all()
    assert not model.selection_.messages
