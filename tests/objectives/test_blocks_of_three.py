"""Three numbers beside an affine block: draws of all data against quadrature of the three."""

from __future__ import annotations

import numpy as np
import pytest

from tests.references.blocks_of_three import random_block_model

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("seed", range(4))
def test_the_value_at_the_decision_is_the_one_of_quadrature(seed):
    model = random_block_model(seed)
    value = model.problem.solve("smoothed", epsilon=model.epsilon, sigma=model.sigma)
    assert "importance sampling" in model.problem.solution.integration
    allowed = 3e-4 * abs(value) + 4 * model.problem.solution.standard_error
    assert value == pytest.approx(model.value(np.asarray(model.x.value)), abs=allowed)


def test_conditional_integration_is_refused_with_what_applies():
    with pytest.raises(ValueError, match=r"3 coordinates move beside .*'tilted'"):
        random_block_model(0).problem.solve("smoothed", integration="conditional")
