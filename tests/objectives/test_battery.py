"""Three hundred random smoothed models with a fixed decision, against independent quadrature."""

import warnings

import pytest

import wdro_model as wdro
from tests.objectives.battery import RIGHT, SHORT, described, draw, solved, truth, verdict

MODELS = [draw(seed) for seed in range(345)]
OUTGROWN = {model.seed for model in MODELS if model.outgrows()}
FINITE = [model for model in MODELS if model.seed not in OUTGROWN]
INFINITE = [model for model in MODELS if model.seed in OUTGROWN]


def test_there_are_three_hundred():
    assert len(FINITE) >= 300


@pytest.mark.parametrize("model", FINITE, ids=lambda model: model.name)
def test_the_value_is_that_of_quadrature(model):
    answer = solved(model)
    true = truth(model, answer)
    assert verdict(answer, true) in (RIGHT, SHORT), described(model, answer, true)


@pytest.mark.parametrize("model", INFINITE, ids=lambda model: model.name)
def test_a_loss_that_outgrows_the_cost_is_refused(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(wdro.UnboundedError, match="grows faster than the cost"):
            model.problem().solve(method="smoothed", time_limit=30, progress=False)
