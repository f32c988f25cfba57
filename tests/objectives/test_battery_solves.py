"""Random smoothed models with a free decision, against an independent search."""

import pytest

from tests.references.battery_solves import draw_free, judged

MODELS = [draw_free(seed) for seed in range(60)]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_the_value_is_right_and_nothing_better_is_found(model):
    found = judged(model, long=False)
    assert not found.complaints(), str(found)
