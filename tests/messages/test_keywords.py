"""A misspelt keyword is answered by the nearest name, and signatures stay what they are."""

import inspect
import pickle

import cvxpy as cp
import networkx as nx
import numpy as np
import pytest

import wdro_model as wdro
from tests.package.public_names import public_modules

DATA = np.random.default_rng(0).normal(size=(6, 2))


def public_callables():
    found = {}
    for module in public_modules():
        for name in module.__all__:
            thing = getattr(module, name)
            own = vars(thing).get("__init__") if inspect.isclass(thing) else thing
            if inspect.isfunction(own):
                found[f"{module.__name__}.{name}"] = thing
    return found


CALLABLES = public_callables()


@pytest.mark.parametrize("name", CALLABLES)
def test_every_public_name_answers_a_misspelt_keyword(name):
    thing = CALLABLES[name]
    kinds = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    parameters = inspect.signature(thing).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    for known in [p.name for p in parameters if p.kind in kinds]:
        wrong = f"{known}{known[-1]}"
        with pytest.raises(TypeError, match=f"unknown argument '{wrong}'. Did you mean '{known}'"):
            thing(**{wrong: None})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: wdro.solvers.FrankWolfe(gapp=1e-3), "FrankWolfe: .*Did you mean 'gap'"),
        (
            lambda: wdro.sets.SpanningTree(nx.path_graph(3), forbiden=[]),
            "Did you mean 'forbidden'",
        ),
        (lambda: wdro.WassersteinBall(radus=1.0), "WassersteinBall: .*Did you mean 'radius'"),
        (lambda: wdro.UncertainParameter(2, data=DATA), "Did you mean 'samples'"),
        (lambda: wdro.UncertainParameter(2, sampels=DATA), "Did you mean 'samples'"),
        (lambda: wdro.cvar(1.0, levle=0.9), "Did you mean 'level'"),
        (lambda: wdro.Problem(cp.Minimize(0), ambiguty=None), "Did you mean 'ambiguity'"),
    ],
)
def test_misspelt(call, message):
    with pytest.raises(TypeError, match=message):
        call()


def stated():
    x = cp.Variable(2, nonneg=True)
    returns = wdro.UncertainParameter(2, samples=DATA)
    objective, constraints = cp.Minimize(returns @ x), [cp.sum(x) == 1]
    return wdro.Problem(objective, constraints, wdro.WassersteinBall(0.1)), returns


def test_errors_from_inside_stay_what_they_are():
    with pytest.raises(TypeError, match="needs a function of"):
        wdro.CallableLoss(3, cp.Variable(), [])
    with pytest.raises(TypeError, match="missing 1 required positional"):
        wdro.WassersteinBall()

    def broken(direction):
        return direction.sum(axs=0)

    with pytest.raises(TypeError, match="axs"):
        wdro.sets.Oracle(broken, 2).minimize(np.ones(2))


def test_signatures_and_references_stay():
    assert list(inspect.signature(wdro.WassersteinBall).parameters)[:2] == ["radius", "cost"]
    assert "gap" in inspect.signature(wdro.solvers.FrankWolfe).parameters
    assert "level" in inspect.signature(wdro.cvar).parameters
    for name, thing in CALLABLES.items():
        if inspect.isfunction(thing):
            assert pickle.loads(pickle.dumps(thing)) is thing, name


def test_the_name_of_a_solver():
    problem, _ = stated()
    with pytest.raises(ValueError, match=r"got 'CLARABLE'. Did you mean 'CLARABEL'"):
        problem.solve(solver="CLARABLE")
    with pytest.raises(ValueError, match="Did you mean 'CLARABEL'"):
        wdro.solvers.Conic("clarable")


def test_arguments_in_the_place_of_others():
    problem, returns = stated()
    x = problem.variables()[0]
    ball = wdro.WassersteinBall(0.1)
    with pytest.raises(ValueError, match="pass the ball as ambiguity="):
        wdro.Problem(cp.Minimize(returns @ x), ball)
    for data in (DATA, {returns: DATA}, DATA.tolist()):
        with pytest.raises(ValueError, match=r"scenarios are test=\{parameter: array\}"):
            wdro.compare(problem, data)


def test_cvxpy_without_a_ball_is_refused():
    x = cp.Variable(2, nonneg=True)
    returns = wdro.UncertainParameter(2, samples=DATA)
    problem = cp.Problem(cp.Minimize(returns @ x), [cp.sum(x) == 1])
    with pytest.raises(ValueError, match=r"ambiguity=wdro_model.WassersteinBall.*wdro_method=.erm"):
        problem.solve(method="wdro")
    mean = problem.solve(method="wdro", wdro_method="erm")
    assert mean == pytest.approx(DATA.mean(axis=0).min(), abs=1e-6)
    ball = wdro.WassersteinBall(0.1)
    assert problem.solve(method="wdro", ambiguity=ball) > mean
    with pytest.raises(TypeError, match="Did you mean 'ambiguity'"):
        problem.solve(method="wdro", ambiguty=ball)
    certain = cp.Problem(cp.Minimize(cp.sum(x)), [cp.sum(x) == 1])
    assert certain.solve(method="wdro") == pytest.approx(1.0)
