"""Frames as data: columns are matched by their names, and scenarios by those of parameters."""

import pickle

import cvxpy as cp
import numpy as np
import pandas as pd
import pytest

import wdro_model as wdro
from wdro_model.uncertainty import LazySamples

RNG = np.random.default_rng(0)
RETURNS = pd.DataFrame(RNG.normal(size=(8, 3)), columns=["bonds", "gold", "stocks"])
TEST = pd.DataFrame(RNG.normal(size=(5, 3)), columns=["bonds", "gold", "stocks"])
SHUFFLED = TEST[["stocks", "bonds", "gold"]]


class Polarised:
    """A frame that is none of pandas: columns and to_numpy, as polars has them."""

    def __init__(self, frame):
        self.columns, self.shape, self._frame = list(frame.columns), frame.shape, frame

    def to_numpy(self):
        return self._frame.to_numpy()


def stated(samples=RETURNS, **options):
    x = cp.Variable(3, nonneg=True)
    returns = wdro.UncertainParameter(3, "returns", samples=samples, **options)
    ball = wdro.WassersteinBall(0.05)
    return wdro.Problem(cp.Minimize(-returns @ x), [cp.sum(x) == 1], ball)


def test_the_shape_and_the_names_come_from_the_columns():
    returns = wdro.UncertainParameter(samples=RETURNS)
    assert returns.shape == (3,)
    assert returns.columns == ("bonds", "gold", "stocks")
    np.testing.assert_array_equal(returns.samples, RETURNS.to_numpy())
    assert pickle.loads(pickle.dumps(returns)).columns == returns.columns
    one = wdro.UncertainParameter(samples=RETURNS[["gold"]])
    assert (one.shape, one.columns) == ((1,), ("gold",))
    assert wdro.UncertainParameter((), samples=RETURNS[["gold"]]).shape == ()
    assert wdro.UncertainParameter(samples=RETURNS["gold"]).shape == ()
    assert wdro.UncertainParameter(samples=[1.0, 2.0]).shape == ()
    assert wdro.UncertainParameter(3, samples=RETURNS.to_numpy()).columns is None


def test_columns_that_are_but_numbered_are_no_names():
    plain = pd.DataFrame(RETURNS.to_numpy())
    assert wdro.UncertainParameter(samples=plain).columns is None
    named = stated()
    named.solve()
    np.testing.assert_array_equal(
        named.losses(pd.DataFrame(TEST.to_numpy())), named.losses(TEST.to_numpy())
    )


@pytest.mark.parametrize("wrap", [lambda frame: frame, Polarised], ids=["pandas", "another"])
def test_the_order_of_the_columns_does_not_matter(wrap):
    problem = stated(wrap(RETURNS))
    problem.solve()
    expected = problem.losses(TEST.to_numpy())
    np.testing.assert_array_equal(problem.losses(wrap(SHUFFLED)), expected)
    assert problem.evaluate({"returns": wrap(SHUFFLED)}).mean == expected.mean()
    twin = problem.with_samples(wrap(SHUFFLED))
    np.testing.assert_array_equal(twin._model.joint.matrix, TEST.to_numpy())
    report = wdro.compare(problem, ("erm", "exact"), test=wrap(SHUFFLED))
    again = wdro.compare(problem, ("erm", "exact"), test=TEST.to_numpy())
    assert report.rows()[1]["mean"] == pytest.approx(again.rows()[1]["mean"], rel=1e-6)
    found = wdro.select_radius(problem, radii=[0.01, 0.1], test=wrap(SHUFFLED), progress=False)
    other = wdro.select_radius(problem, radii=[0.01, 0.1], test=TEST.to_numpy(), progress=False)
    np.testing.assert_allclose(found.scores, other.scores, rtol=1e-6)
    ways = [problem.path([0.01, 0.1], test=test) for test in (wrap(SHUFFLED), TEST.to_numpy())]
    mine, theirs = (way.statistics("test")[0].mean for way in ways)
    assert mine == pytest.approx(theirs, rel=1e-6)


WRONG = {
    "missing": (TEST[["bonds", "gold"]], r"scenarios of 'returns' have no column 'stocks'\."),
    "capitals": (
        TEST.rename(columns=str.upper),
        "have no column 'bonds', 'gold', 'stocks'; is it the one called 'BONDS'?",
    ),
    "none": (TEST[[]], "are a frame without columns; select some"),
    "misspelt": (
        TEST.rename(columns={"gold": "Gold"}),
        "have no column 'gold'; is it the one called 'Gold'?",
    ),
    "extra": (
        TEST.assign(golds=1.0),
        r"have the column 'golds' too many \(the nearest known one is 'gold'\); select the known",
    ),
    "date": (
        TEST.assign(gold=pd.Timestamp("2024-01-01")),
        "but column 'gold' has Timestamp.* in row 0; drop the column",
    ),
    "words": (TEST.assign(gold="a"), "but column 'gold' has 'a' in row 0"),
    "nothing": (TEST.astype("Float64").mask(TEST > 0), "column .* has <NA>|finite, got nan"),
    "levels": (
        pd.concat({"a": TEST}, axis=1),
        r"columns of several levels, such as \('a', 'bonds'\); give each one name",
    ),
    "twice": (
        TEST.set_axis(["bonds", "gold", "gold"], axis=1),
        "have two columns called 'gold'; drop or rename",
    ),
}


@pytest.mark.parametrize(("frame", "message"), WRONG.values(), ids=WRONG)
def test_other_columns_are_refused(frame, message):
    problem = stated()
    problem.solve()
    for ask in (
        problem.losses,
        problem.evaluate,
        problem.with_samples,
        lambda frame: wdro.compare(problem, "erm", test=frame),
        lambda frame: wdro.select_radius(problem, radii=[0.1], test=frame, progress=False),
    ):
        with pytest.raises(ValueError, match=message.replace("scenarios of", "s.* of")):
            ask(frame)


@pytest.mark.parametrize("kind", ["date", "words", "levels", "twice", "none"])
def test_frames_without_numbers_are_refused_when_they_are_declared(kind):
    frame, message = WRONG[kind]
    with pytest.raises(ValueError, match=message):
        wdro.UncertainParameter(samples=frame)


def test_mixed_columns_of_numbers_are_numbers():
    frame = pd.DataFrame({"a": [1, 2], "b": [0.5, 1.5], "c": [True, False]})
    returns = wdro.UncertainParameter(samples=frame)
    np.testing.assert_array_equal(returns.samples, [[1, 0.5, 1], [2, 1.5, 0]])


def test_probabilities_with_labels_are_brought_into_the_order_of_the_samples():
    p = pd.Series(np.arange(1, 9) / 36)
    weighted = wdro.UncertainParameter(samples=RETURNS, probabilities=p)
    np.testing.assert_allclose(weighted.probabilities, p)
    again = wdro.UncertainParameter(samples=RETURNS, probabilities=p[::-1])
    np.testing.assert_allclose(again.probabilities, p)
    with pytest.raises(ValueError, match=r"the rows of probabilities of .* have the labels 10"):
        wdro.UncertainParameter(samples=RETURNS, probabilities=p.set_axis(p.index + 10))
    problem = stated()
    again = problem.with_samples(RETURNS, probabilities=p)
    np.testing.assert_allclose(again._model.joint.probabilities, p)
    again = problem.with_samples({"returns": RETURNS}, probabilities=p[::-1])
    np.testing.assert_allclose(again._model.joint.probabilities, p)
    plain = problem.with_samples(RETURNS.to_numpy(), probabilities=p[::-1])
    np.testing.assert_allclose(plain._model.joint.probabilities, p[::-1])


def test_messages_name_columns():
    frame = RETURNS.assign(gold=1.0)
    x = cp.Variable(3, nonneg=True)
    returns = wdro.UncertainParameter(3, "returns", samples=frame)
    cost = wdro.costs.SquaredEuclidean(weights="standardize")
    with pytest.raises(ValueError, match=r"returns\['gold'\] does not"):
        wdro.Problem(cp.Minimize(returns @ x), [], wdro.WassersteinBall(0.1, cost))


# ------------------------------------------------------------------ names as keys
def two(first="price", second="demand"):
    x = cp.Variable(2, nonneg=True)
    price = wdro.UncertainParameter(samples=RETURNS[["bonds", "gold"]], name=first)
    demand = wdro.UncertainParameter(samples=RETURNS["stocks"], name=second)
    problem = wdro.Problem(
        cp.Minimize(price @ x + demand * x[0]), [cp.sum(x) == 1], wdro.WassersteinBall(0.1)
    )
    problem.solve()
    return problem, price, demand


def test_names_do_for_keys():
    problem, price, demand = two()
    by_object = {price: TEST[["bonds", "gold"]], demand: TEST["stocks"]}
    by_name = {"price": TEST[["gold", "bonds"]], "demand": TEST["stocks"]}
    mixed = {"price": TEST[["gold", "bonds"]], demand: TEST["stocks"]}
    expected = problem.losses(by_object)
    for given in (by_name, mixed):
        np.testing.assert_array_equal(problem.losses(given), expected)
        twin = problem.with_samples(given)
        np.testing.assert_array_equal(
            twin._model.joint.matrix, problem.with_samples(by_object)._model.joint.matrix
        )
    assert problem.evaluate(by_name).mean == expected.mean()
    report = wdro.compare(problem, "erm", test=by_name)
    assert report.scenario_sets == ("training", "test")
    sets = wdro.compare(problem, "erm", test={"calm": by_name, "wild": by_object})
    assert sets.scenario_sets == ("training", "calm", "wild")
    wdro.select_radius(problem, radii=[0.1], test=by_name, progress=False)
    lazy = LazySamples(lambda k: TEST[["bonds", "gold"]].to_numpy()[k], 5, (2,))
    np.testing.assert_array_equal(
        problem.losses({"price": lazy, "demand": TEST["stocks"]}), expected
    )


def test_sets_of_scenarios_keep_their_names():
    problem = stated()
    report = wdro.compare(problem, "erm", test={"calm": TEST, "wild": 2 * TEST})
    assert report.scenario_sets == ("training", "calm", "wild")


def test_unknown_and_ambiguous_names_are_refused():
    problem, price, _ = two()
    data = {"price": TEST[["bonds", "gold"]], "demand": TEST["stocks"]}
    for ask in (problem.losses, problem.evaluate, problem.with_samples):
        with pytest.raises(ValueError, match=r"for 'prize'.* Did you mean 'price'?"):
            ask({"prize": data["price"], "demand": data["demand"]})
        with pytest.raises(ValueError, match="missing for 'demand'"):
            ask({"price": data["price"]})
        with pytest.raises(ValueError, match="'price' are given twice"):
            ask({**data, price: data["price"]})
        with pytest.raises(ValueError, match=r"for 'price', 'demand', got a DataFrame; its col"):
            ask(TEST)
    with pytest.raises(ValueError, match="missing for 'demand'"):
        wdro.compare(problem, "erm", test={"price": data["price"]})
    same, _, _ = two("price", "price")
    with pytest.raises(ValueError, match="2 uncertain parameters are called 'price'; use the"):
        same.losses({"price": data["price"]})
