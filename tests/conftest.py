"""Fixtures shared by the tests."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def portfolio(rng):
    """An affine loss over the simplex: the smallest model with an exact counterpart."""
    x = cp.Variable(4, nonneg=True, name="x")
    data = rng.normal(0.1, 0.3, size=(15, 4))
    returns = wdro.UncertainParameter(4, name="returns", samples=data)
    problem = wdro.Problem(
        cp.Minimize(-returns @ x), [cp.sum(x) == 1], ambiguity=wdro.WassersteinBall(0.04)
    )
    return problem, x, data
