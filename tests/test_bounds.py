"""The paper's constants against cases computed by hand."""

import math

import pytest

from wdro_model import bounds

ESTIMATOR = bounds.Estimator(
    loss_bound=1.0, epsilon=2.0, sigma=1.0, dimension=2, size=5, batch_size=2, draws=4
)


def test_dual_bound():
    # 2 * 3 / (10 - 4)
    assert bounds.dual_bound(loss_bound=3.0, radius=10.0, mean_cost=4.0) == pytest.approx(1.0)


def test_dual_bound_from_the_reference():
    # 2 * 3 / (10 - 2 * 0.25 * 8)
    found = bounds.gaussian_dual_bound(3.0, radius=10.0, sigma=0.5, dimension=8, cost_upper=2.0)
    assert found == pytest.approx(1.0)


def test_dual_bound_needs_a_radius_above_the_mean_cost():
    with pytest.raises(ValueError, match=r"radius=1 and mean_cost=4; lower sigma"):
        bounds.dual_bound(3.0, radius=1.0, mean_cost=4.0)


def test_dual_bound_names_a_sigma_that_would_do():
    with pytest.raises(ValueError, match=r"L_c sigma\^2 d = 100; take sigma < 0.1,"):
        bounds.gaussian_dual_bound(3.0, radius=1.0, sigma=1.0, dimension=100)
    assert bounds.gaussian_dual_bound(3.0, 1.0, sigma=0.0999, dimension=100) > 0


def test_variance_of_the_gradient_in_the_decision():
    # 4*9/(2*4) * e^2 * (1+2)^-1 * (1+1)^2 + 3/(2*4) * 9 = 6 e^2 + 3.375
    found = bounds.decision_variance(ESTIMATOR, dual=1.0, gradient_bound=3.0)
    assert found == pytest.approx(47.7093365935839, rel=1e-13)


def test_variance_of_the_derivative_in_the_dual():
    # 4/8 * e^2 * 4/3 + 3/8
    found = bounds.dual_variance(ESTIMATOR, dual=1.0, cost_bound=1.0)
    assert found == pytest.approx(5.3010373992871, rel=1e-13)


def test_variance_of_the_whole_gradient_is_the_sum():
    found = bounds.full_variance(ESTIMATOR, dual=1.0, gradient_bound=3.0, cost_bound=1.0)
    assert found == pytest.approx(47.7093365935839 + 5.3010373992871, rel=1e-13)


def test_unequal_cost_constants():
    # rate = 1/2: (1 + 4*0.5*0.5)^-1 = 1/2, (1 + 2*0.5*2)^2 = 9: 4/8 e^2 * 4.5 + 3/8
    estimator = bounds.Estimator(1.0, 2.0, 1.0, 2, 5, 2, 4, cost_lower=0.5, cost_upper=2.0)
    found = bounds.dual_variance(estimator, dual=1.0, cost_bound=1.0)
    assert found == pytest.approx(2.25 * math.e**2 + 0.375, rel=1e-13)


def test_a_full_batch_leaves_the_noise_of_the_draws_only():
    one = bounds.Estimator(0.0, 1.0, 1.0, 1, size=1, batch_size=1, draws=4)
    assert bounds.decision_variance(one, dual=0.0, gradient_bound=3.0) == pytest.approx(9.0)


def test_log_variance_where_the_variance_overflows():
    tight = bounds.Estimator(1e5, 1e-3, 1.0, 76, size=100, batch_size=10, draws=100)
    assert bounds.decision_variance(tight, dual=0.0, gradient_bound=1.0) == math.inf
    # 4 * 1e5 / 1e-3 + log(4 / 1000); the batch part is nothing beside it
    found = bounds.log_decision_variance(tight, dual=0.0, gradient_bound=1.0)
    assert found == pytest.approx(4e8 + math.log(0.004), rel=1e-14)
    assert bounds.log_dual_variance(tight, dual=0.0, cost_bound=1e200) == pytest.approx(
        4e8 + math.log(0.004) + 400 * math.log(10), rel=1e-14
    )


def test_no_gradient_no_variance():
    assert bounds.decision_variance(ESTIMATOR, dual=1.0, gradient_bound=0.0) == 0.0
    assert bounds.log_full_variance(ESTIMATOR, 1.0, 0.0, 0.0) == -math.inf


@pytest.mark.parametrize(
    ("gap", "gradient", "constant"),
    [
        (1.0, 2.0, 6.75),  # 0.75 + 2 * 0.5 * max(6, sqrt(16 + 2 * 9 * 0.25))
        (1.0, 0.1, 5.277692569068709),  # 0.75 + sqrt(20.5)
        (10.0, 0.1, 20.80083823051904),  # 9^(1/3) * 10
    ],
)
def test_convergence_constant(gap, gradient, constant):
    found = bounds.convergence_constant(gap, gradient, smoothness=3.0, diameter=0.5, log_variance=0)
    assert found == pytest.approx(constant, rel=1e-13)


def test_convergence_constant_in_logarithms():
    given = {"initial_gap": 1.0, "initial_gradient": 1.0, "smoothness": 1.0, "diameter": 2.0}
    assert bounds.convergence_constant(**given, log_variance=4e8) == math.inf
    # 2 D sqrt(16 V) = 16 sqrt(V)
    found = bounds.log_convergence_constant(**given, log_variance=4e8)
    assert found == pytest.approx(2e8 + math.log(16), rel=1e-14)


def test_rate():
    assert bounds.convergence_bound(6.0, iteration=18) == pytest.approx(2.0)
    assert bounds.convergence_bound(math.inf, iteration=18) == math.inf


def test_erm_on_finitely_many_decisions():
    # 2 * sqrt(2 log(400) / 100) + 0.1, log(400) = 5.991464547107982
    found = bounds.erm_bound(1.0, size=100, decisions=10, confidence=0.95, tolerance=0.1)
    assert found == pytest.approx(2 * math.sqrt(0.11982929094215963) + 0.1, rel=1e-12)


def test_erm_on_all_spanning_trees_of_a_complete_graph():
    # Cayley: 200^198 trees, more than a float holds
    found = bounds.erm_bound(1.0, size=1000, decisions=200**198, confidence=0.5)
    expected = 2 * math.sqrt(2 * (math.log(4) + 198 * math.log(200)) / 1000)
    assert found == pytest.approx(expected, rel=1e-12)


def test_erm_under_shift():
    # 2 * 3 * sqrt(0.04 / 4) = 0.6 on top
    found = bounds.erm_shift_bound(1.0, 100, 10, 0.95, radius=0.04, lipschitz=3.0, cost_lower=4.0)
    assert found == pytest.approx(2 * math.sqrt(0.11982929094215963) + 0.6, rel=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bounds.dual_bound(-1.0, 1.0, 0.0), "loss_bound must be a nonnegative"),
        (lambda: bounds.dual_bound(1.0, math.nan, 0.0), "radius must be a nonnegative finite"),
        (lambda: bounds.gaussian_dual_bound(1.0, 1.0, 0.0, 2), "sigma must be a positive"),
        (lambda: bounds.gaussian_dual_bound(1.0, 1.0, 0.1, 2.5), "dimension must be an integer"),
        (lambda: bounds.Estimator(1, 1, 1, 1, 5, 6, 1), "batch_size=6 is larger than the 5 sam"),
        (lambda: bounds.Estimator(1, 1, 1, 1, 5, 5, 1, 2.0, 1.0), "cost_lower must be at most"),
        (lambda: bounds.erm_bound(1.0, 10, 10, 1.0), "confidence must be a number between 0 and 1"),
        (lambda: bounds.erm_bound(1.0, 10, 0, 0.9), "decisions must be an integer of at least 1"),
        (lambda: bounds.erm_bound(True, 10, 1, 0.9), "loss_bound must be a nonnegative"),
        (lambda: bounds.convergence_bound(1.0, -1), "iteration must be an integer of at least 0"),
        (lambda: bounds.convergence_constant(1, 1, 1, 1, math.nan), "log_variance must be a num"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
