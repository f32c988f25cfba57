"""No wrong value is called optimal: sampled solves in three to five dimensions against particles.

`python -m tests.references.sampled_decisions` goes through many more.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.references.annealed import Annealed
from tests.references.sampled_decisions import judged, random_decision
from wdro_model.objectives.integration import Scales, Stream
from wdro_model.objectives.integration.tilted import Tilted

pytestmark = pytest.mark.filterwarnings("ignore")

QUICK = [2, 7, 34, 35, 36, 37, 39, 44, 45, 49]
"""Seeds of problems that are solved in a second or so."""


@pytest.mark.parametrize("seed", QUICK)
def test_a_value_called_optimal_is_right(seed):
    found = judged(random_decision(seed), draws=2**15)
    assert found.status == "optimal"
    assert not found.wrong


def test_a_far_corner_of_the_box_is_not_missed():
    """The loss grows like exp: at this price of transport all of the mass is in the far corner."""
    case, epsilon, sigma, dual = random_decision(11), 9e-4, 0.01, 1.0
    rule = Tilted(case.problem()._model, Scales(epsilon, sigma, 256))
    rule.refresh(case.decision, dual)
    inner = rule.slice(case.decision, np.arange(1), Stream(0))
    truth = case.reference(epsilon, sigma).one(0, dual)
    assert truth.cost > 6
    assert inner.evaluate(dual).value == pytest.approx(epsilon * truth.log_mean, rel=1e-3)
    assert -inner.evaluate(dual).slope == pytest.approx(truth.cost, rel=1e-3)


def test_the_particles_agree_with_a_gaussian_integral():
    """E exp((<b, z> - l |z - xi|^2)/eps) for z ~ N(xi, sigma^2) in closed form."""
    b, row, epsilon, sigma, dual = np.array([1.0, -0.5, 0.3]), np.ones((1, 3)), 0.1, 0.3, 0.8
    reference = Annealed(
        lambda z: z @ b, lambda m: (m**2).sum(1), row, epsilon, np.array(sigma), 0.1
    )
    v = 1 / (2 * dual / epsilon + 1 / sigma**2)
    exact = row[0] @ b / epsilon + v * (b @ b) / (2 * epsilon**2) + 1.5 * np.log(v / sigma**2)
    found = reference.one(0, dual)
    assert found.log_mean == pytest.approx(exact, abs=5 * found.error)
