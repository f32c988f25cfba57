import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from tests.sets.fuzzing import DIRECTIONS, travels
from wdro_model.sets import NuclearBall, Spectraplex, check

BACKENDS = NuclearBall.backends()
SHAPES = [(1, 1), (1, 5), (2, 2), (3, 5), (5, 3), (8, 8)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_nuclear_balls_are_minimised_to_the_spectral_norm(shape, backend):
    ball, rng = NuclearBall(shape, 2.0, backend=backend), np.random.default_rng(0)
    for draw in DIRECTIONS.values():
        direction = draw(rng, ball.dimension)
        point = ball.minimize(direction)
        least = -2.0 * np.linalg.norm(direction.reshape(shape), 2)
        assert direction @ point == pytest.approx(least, rel=1e-9, abs=1e-300)
        assert np.linalg.norm(ball.table(point), "nuc") == pytest.approx(2.0)
    assert check(ball, directions=20, compared=2).passed
    travels(ball)


@pytest.mark.parametrize("backend", Spectraplex.backends())
@pytest.mark.parametrize("n", [1, 2, 3, 6])
def test_spectraplexes_are_minimised_to_the_smallest_eigenvalue(n, backend):
    spectraplex, rng = Spectraplex(n, trace=3.0, backend=backend), np.random.default_rng(0)
    for draw in DIRECTIONS.values():
        direction = draw(rng, n * n)
        point = spectraplex.minimize(direction)
        matrix = direction.reshape(n, n)
        size = np.abs(direction).max()
        least = 3.0 * np.linalg.eigvalsh((matrix + matrix.T) / 2)[0]
        assert direction @ point == pytest.approx(least, rel=1e-9, abs=1e-12 * size)
        table = spectraplex.table(point)
        assert np.trace(table) == pytest.approx(3.0)
        assert np.linalg.eigvalsh(table)[0] >= -1e-12
        np.testing.assert_array_equal(table, table.T)
    assert check(spectraplex, directions=20, compared=2).passed
    travels(spectraplex)


def test_large_matrices_go_to_arpack_and_repeat_themselves():
    rng = np.random.default_rng(0)
    for feasible in (NuclearBall((80, 100), 1.0), Spectraplex(80)):
        assert feasible.backend == "arpack"
        direction = rng.standard_normal(feasible.dimension)
        first, second = feasible.minimize(direction), feasible.minimize(direction)
        np.testing.assert_array_equal(first, second)
        dense = feasible.with_backend("dense").minimize(direction)
        assert direction @ first == pytest.approx(direction @ dense, rel=1e-9)
        assert np.all(first >= feasible.bounds[0] - 1e-9)


def test_a_symmetric_gradient_with_a_negative_twin_is_no_trap():
    """The two largest singular values agree: any of their vectors is a minimiser."""
    ball = NuclearBall((70, 70), 1.0)
    direction = np.diag(np.r_[1.0, -1.0, np.zeros(68)]).ravel()
    assert direction @ ball.minimize(direction) == pytest.approx(-1.0)


def test_a_robust_matrix_over_a_nuclear_ball():
    rng = np.random.default_rng(0)
    X = cp.Variable((3, 4))
    target = wdro.UncertainParameter((3, 4), samples=rng.standard_normal((8, 3, 4)))
    problem = wdro.Problem(
        cp.Minimize(cp.sum_squares(X - target)),
        [wdro.In(X, NuclearBall((3, 4), 1.0))],
        ambiguity=wdro.WassersteinBall(0.01),
    )
    problem.solve(method="erm")
    assert np.linalg.norm(X.value, "nuc") <= 1.0 + 1e-6
