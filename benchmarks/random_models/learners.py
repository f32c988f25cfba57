"""Regression and classification: estimators and problems, against regularised programs."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np

import wdro_model as wdro
from random_models.trial import Answer, NoReferenceError, Trial, read_answer

RELATIVE = 1e-5
SMOOTH_RELATIVE = 1e-4
"""Of estimators and smooth losses, that stop at a gap."""


def loss_of(kind: str, margin: Any, residual: Any, quantile: float) -> tuple[Any, float]:
    """The loss as a NumPy array or a CVXPY expression, and its largest slope."""
    is_array = isinstance(residual if margin is None else margin, np.ndarray)
    if kind == "hinge":
        return (np.maximum(0, 1 - margin) if is_array else cp.pos(1 - margin)), 1.0
    if kind == "logistic":
        return (np.logaddexp(0, -margin) if is_array else cp.logistic(-margin)), 1.0
    if kind == "huber":
        if not is_array:
            return cp.huber(residual, 1.0), 2.0
        size = np.abs(residual)
        return np.where(size <= 1, size**2, 2 * size - 1), 2.0
    if kind == "absolute":
        return (np.abs(residual) if is_array else cp.abs(residual)), 1.0
    sides = (quantile * residual, (quantile - 1) * residual)
    return (np.maximum(*sides) if is_array else cp.maximum(*sides)), max(quantile, 1 - quantile)


def draw_learner(rng: np.random.Generator) -> Trial:
    """A linear model with labels held or free, with a norm; or least squares."""
    d, N = int(rng.integers(1, 7)), int(rng.integers(8, 60))
    kinds = ["hinge", "logistic", "huber", "absolute", "quantile", "least squares"]
    kind = str(rng.choice(kinds))
    classify = kind in ("hinge", "logistic")
    p = [1, 2, np.inf][int(rng.integers(3))]
    dual = {1: np.inf, 2: 2, np.inf: 1}[p]
    radius = float(10.0 ** rng.uniform(-3, 0))
    quantile = float(rng.choice([0.1, 0.5, 0.9]))
    X = rng.normal(size=(N, d)) * 10.0 ** rng.uniform(-0.5, 0.5, size=d)
    response = X @ rng.normal(size=d) + rng.normal(size=N)
    y = np.sign(response) if classify else response
    if classify:
        y[:2] = [-1.0, 1.0]
    intercept = bool(rng.random() < 0.5)
    held = classify or bool(rng.random() < 0.5)
    as_estimator = kind != "huber" and bool(rng.random() < 0.5)
    squared = kind == "least squares"
    cost_name = "squared" if squared else {1: "l1", 2: "l2", np.inf: "linf"}[p]

    def value_at(theta: np.ndarray, b: float) -> float:
        residual = y - X @ theta - b
        slopes = theta if held else np.append(theta, -1.0)
        if squared:
            length = np.sqrt(radius) * np.linalg.norm(slopes)
            return float((np.sqrt(np.mean(residual**2)) + length) ** 2)
        losses, steep = loss_of(kind, y * (X @ theta + b) if classify else None, residual, quantile)
        return float(np.mean(losses) + radius * steep * np.linalg.norm(slopes, dual))

    def optimum() -> float:
        theta, b = cp.Variable(d), cp.Variable()
        residual = y - X @ theta - b
        slopes = theta if held else cp.hstack([theta, -1.0])
        if squared:
            goal = cp.norm(residual, 2) / np.sqrt(N) + np.sqrt(radius) * cp.norm(slopes, 2)
        else:
            margin = cp.multiply(y, X @ theta + b) if classify else None
            losses, steep = loss_of(kind, margin, residual, quantile)
            goal = cp.sum(losses) / N + radius * steep * cp.norm(slopes, dual)
        rows = [] if intercept else [b == 0]
        program = cp.Problem(cp.Minimize(goal), rows)
        program.solve(solver="CLARABEL")
        if program.status != "optimal":
            raise NoReferenceError(str(program.status))
        return value_at(theta.value, float(b.value))

    labels = "fixed" if held else "uncertain"

    def solve_estimator(limit: float) -> Answer:
        del limit
        common: dict[str, Any] = {"cost": cost_name, "fit_intercept": intercept}
        E = wdro.estimators
        model = {
            "hinge": lambda: E.RobustHingeClassifier(radius, **common),
            "logistic": lambda: E.RobustLogisticRegression(radius, **common),
            "quantile": lambda: E.RobustQuantileRegressor(
                radius, quantile=quantile, labels=labels, **common
            ),
            "absolute": lambda: E.RobustLinearRegression(
                radius, loss="absolute", labels=labels, **common
            ),
            "least squares": lambda: E.RobustLinearRegression(radius, labels=labels, **common),
        }[kind]()
        model.fit(X, y)
        b = float(np.ravel(model.intercept_)[0]) if intercept else 0.0
        decision = np.append(np.ravel(model.coef_), b)
        status = str(model.problem_.status)
        return Answer(float(model.promise_), status, decision, model.problem_.solution.gap)

    theta, b = cp.Variable(d, name="theta"), cp.Variable(name="b")

    def solve_problem(limit: float) -> Answer:
        features = wdro.UncertainParameter(d, name="features", samples=X)
        label = wdro.UncertainParameter(name="label", samples=y)
        weights = {features: 1.0, label: np.inf if held else 1.0}
        cost: Any = wdro.costs.SquaredEuclidean(weights=weights)
        if not squared:
            cost = wdro.costs.Norm(p, weights=weights)
        score = features @ theta + (b if intercept else 0.0)
        if squared:
            loss = cp.square(label - score)
        elif classify:
            loss, _ = loss_of(kind, label * score, None, quantile)
        else:
            loss, _ = loss_of(kind, None, label - score, quantile)
        problem = wdro.Problem(cp.Minimize(loss), [], wdro.WassersteinBall(radius, cost))
        problem.solve(time_limit=limit)
        return read_answer(problem, np.append(theta.value, b.value if intercept else 0.0))

    def judge(answer: Answer) -> list[str]:
        best = optimum()
        scale = max(1e-2, abs(best))
        own = value_at(answer.decision[:-1], float(answer.decision[-1]))
        gap = max(answer.gap or 0.0, 0.0)
        smooth = SMOOTH_RELATIVE if kind in ("logistic", "huber") or as_estimator else RELATIVE
        wrong = []
        if abs(own - answer.value) > RELATIVE * scale:
            wrong.append(f"value {answer.value:.8g}, of its decision {own:.8g}")
        if answer.value < best - RELATIVE * scale:
            wrong.append(f"value {answer.value:.8g} is below the optimum {best:.8g}")
        if answer.is_optimal and own > best + gap + smooth * scale:
            wrong.append(f"its decision costs {own:.8g}, the best {best:.8g}, gap {gap:.2g}")
        return wrong

    way = "estimator" if as_estimator else "problem"
    text = f"{way} {kind}, labels {labels}, N={N} d={d} {cost_name} radius {radius:.3g}"
    text += ", intercept" if intercept else ""
    return Trial(text, solve_estimator if as_estimator else solve_problem, judge)
