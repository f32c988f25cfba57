"""The page with a slider: its numbers are those of the solves, and it works in a browser."""

from __future__ import annotations

import json
import pickle
import re
import shutil

import cvxpy as cp
import networkx as nx
import numpy as np
import pytest

import wdro_model as wdro

pytest.importorskip("matplotlib")
RADII = [0.0, 0.01, 0.1, 1.0]
NAME = '</script><b> & "x"'
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def make(size=25, maximise=False):
    rng = np.random.default_rng(1)
    x = cp.Variable(4, nonneg=True, name=NAME)
    returns = wdro.UncertainParameter(4, name=NAME, samples=rng.normal(0.1, 0.3, size=(size, 4)))
    sense = cp.Maximize(returns @ x) if maximise else cp.Minimize(-returns @ x)
    problem = wdro.Problem(sense, [cp.sum(x) == 1], ambiguity=wdro.WassersteinBall(0.1))
    return problem, x, {NAME: rng.normal(0.05, 0.3, size=(400, 4)), "bad": rng.normal(size=(50, 4))}


@pytest.fixture(scope="module")
def explored():
    problem, x, test = make()
    report = wdro.compare(problem, ("erm", "exact"), test=test)
    return problem, x, test, report, report.to_html(radii=RADII, progress=False)


def data_of(source):
    """The JSON within a page."""
    found = re.search(r'<script type="application/json" id="explored">(.*?)</script>', source, re.S)
    return json.loads(found.group(1))


def test_the_numbers_are_those_of_solves_of_ones_own(explored):
    problem, x, test, _, source = explored
    data = data_of(source)
    assert data["radii"] == RADII
    assert data["sets"] == ["training", NAME, "bad"]
    assert data["coordinates"] == [f"{NAME}[{i}]" for i in range(4)]
    erm, exact = data["methods"]
    assert (erm["family"], exact["family"]) == ("erm", "exact")
    assert exact["radii"] == RADII
    for k, radius in enumerate(RADII):
        twin = problem.with_radius(radius)
        value = twin.solve(method="exact" if radius else "erm")
        assert exact["promise"][k] == pytest.approx(value, rel=1e-5)
        assert exact["decision"][k] == pytest.approx(x.value, abs=1e-4)
        for s, name in enumerate(data["sets"]):
            losses = -(twin.uncertain_parameters()[0].samples if s == 0 else test[name]) @ x.value
            found = exact["losses"][s]
            assert found["mean"][k] == pytest.approx(losses.mean(), abs=1e-4)
            assert found["worst"][k] == pytest.approx(losses.max(), abs=1e-3)
            assert found["excess"][k] == pytest.approx(losses.mean() - value, abs=1e-4)
            assert found["quantiles"][k][50] == pytest.approx(np.median(losses), abs=1e-3)
            assert len(found["quantiles"][k]) == 101
    assert erm["promise"] == pytest.approx([problem.with_radius(0).solve()], rel=1e-5)


def test_the_worst_case_is_that_of_the_formula(explored):
    """A linear loss: all samples move by sqrt(radius) along x, and gain sqrt(radius) |x|."""
    problem, _, _, _, source = explored
    data = data_of(source)
    exact = data["methods"][1]
    assert exact["worst"][0] is None
    samples = problem.uncertain_parameters()[0].samples
    for k, radius in list(enumerate(RADII))[1:]:
        worst, x = exact["worst"][k], np.array(exact["decision"][k])
        assert worst["expected"] == pytest.approx(exact["promise"][k], rel=1e-5)
        assert worst["cost"] == pytest.approx(radius, rel=1e-5)
        moved = -np.sqrt(radius) * x / np.linalg.norm(x) / samples.std(axis=0)
        assert worst["shift"] == pytest.approx(moved, abs=1e-4)
        assert len(worst["samples"]) == 8
        for sample, weight, before, after, cost in worst["samples"]:
            assert weight == pytest.approx(1 / 25)
            assert before == pytest.approx(-samples[int(sample)] @ x, abs=1e-5)
            assert after - before == pytest.approx(np.sqrt(radius) * np.linalg.norm(x), rel=1e-4)
            assert cost == pytest.approx(radius, rel=1e-4)


def test_the_page_is_valid_small_and_alone(explored):
    html5lib = pytest.importorskip("html5lib")
    source = explored[-1]
    html5lib.HTMLParser(strict=True).parse(source)
    assert len(source.encode()) < 1_000_000
    assert "http" not in re.sub(r"base64,[A-Za-z0-9+/=]+", "", source)
    assert "<b> &" not in source
    assert source.count("</script>") == 2


def test_radii_of_the_comparison_need_no_further_solves(monkeypatch):
    problem, _, test = make()
    report = wdro.compare(problem, ("erm", "exact"), test=test, radii=[0.01, 0.1])
    monkeypatch.setattr(type(problem), "solve", None)
    data = data_of(report.to_html())
    assert data["radii"] == [0.01, 0.1]
    assert [method["name"] for method in data["methods"]] == ["erm", "exact"]
    assert data["methods"][1]["promise"] == pytest.approx(
        [report[f"exact, radius {r}"].promise for r in (0.01, 0.1)]
    )


def test_one_radius_has_no_slider():
    problem, _, test = make()
    assert 'id="explorer"' not in wdro.compare(problem, ("erm", "exact"), test=test).to_html()


def test_a_path_has_its_page(tmp_path):
    problem, _, test = make()
    path = problem.path(RADII, "smoothed", test=test)
    assert path.to_html(tmp_path / "path.html") is None
    source = (tmp_path / "path.html").read_text(encoding="utf-8")
    pytest.importorskip("html5lib").HTMLParser(strict=True).parse(source)
    data = data_of(source)
    (method,) = data["methods"]
    assert method["promise"] == pytest.approx(list(path.values), rel=1e-6)
    assert method["losses"][2]["mean"] == pytest.approx(path.means("bad"), rel=1e-6)
    worst = method["worst"][-1]
    assert 0 < worst["cost"] <= 1.0 + 1e-6


def test_a_page_needs_its_problem():
    problem, _, test = make()
    report = pickle.loads(pickle.dumps(wdro.compare(problem, ("erm", "exact"), test=test)))
    assert "<h1>" in report.to_html()
    with pytest.raises(ValueError, match=r"read from a file; call compare\(problem, ..., radii="):
        report.to_html(radii=RADII)
    path = pickle.loads(pickle.dumps(problem.path(RADII)))
    with pytest.raises(ValueError, match=r"call problem.path\(radii\) again"):
        path.to_html()
    with pytest.raises(ValueError, match="radii must be a list"):
        wdro.compare(problem, ("erm", "exact")).to_html(radii=[-1])


def test_rewards_keep_their_sign():
    problem, _, test = make(maximise=True)
    losses = data_of(wdro.compare(problem, ("erm", "exact"), test=test, radii=RADII).to_html())
    loss = data_of(wdro.compare(make()[0], ("erm", "exact"), test=test, radii=RADII).to_html())
    assert losses["maximise"]
    for gain, own in zip(losses["methods"], loss["methods"]):
        np.testing.assert_allclose(gain["promise"], -np.array(own["promise"]), atol=1e-6)
        for a, b in zip(gain["worst"][1:], own["worst"][1:]):
            assert a["expected"] == pytest.approx(-b["expected"], abs=1e-6)
            assert a["shift"] == pytest.approx(b["shift"], abs=1e-4)
        for s in range(3):
            np.testing.assert_allclose(
                gain["losses"][s]["excess"], own["losses"][s]["excess"], atol=1e-5
            )


def test_many_coordinates_and_losses_stay_small():
    rng = np.random.default_rng(0)
    tree = wdro.sets.SpanningTree(nx.complete_graph(12))
    x = cp.Variable(tree.dimension, name="x")
    costs = wdro.UncertainParameter(66, name="costs", samples=rng.uniform(size=(40, 66)))
    problem = wdro.Problem(
        cp.Minimize(costs @ x), [wdro.In(x, tree)], ambiguity=wdro.WassersteinBall(0.1)
    )
    test = {f"test {k}": rng.uniform(size=(5000, 66)) for k in range(3)}
    methods = {name: {"method": "exact"} for name in ("one", "two", "three")}
    radii = np.geomspace(0.01, 10, 10)
    source = wdro.compare(problem, methods, test, radii, rounded=True).to_html()
    assert len(source.encode()) < 1_000_000
    data = data_of(source)
    assert len(data["coordinates"]) == 24
    assert len(data["entries"]) == 12
    assert all(re.fullmatch(r"x\(\d+, \d+\)", name) for name in data["coordinates"])
    assert [m["name"] for m in data["methods"]][:2] == ["one", "one, rounded"]


# ------------------------------------------------------------------ in a browser
@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"no browser: one of {', '.join(BROWSERS)} is needed on the PATH")
    with playwright.sync_playwright() as running:
        found = running.chromium.launch(
            executable_path=program,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        yield found
        found.close()


@pytest.fixture(params=[1280, 390])
def opened(explored, browser, request, tmp_path):
    """The page in a window of some width, with all errors and requests noted."""
    file = tmp_path / "page.html"
    file.write_text(explored[-1], encoding="utf-8")
    tab = browser.new_page(viewport={"width": request.param, "height": 900})
    noted = []
    tab.on("pageerror", lambda error: noted.append(str(error)))
    tab.on("request", lambda request: noted.append(request.url))
    tab.goto(file.as_uri())
    yield tab
    assert [note for note in noted if not note.startswith(("data:", file.as_uri()))] == []
    tab.close()


def rows_of(tab, table):
    cells = "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    return tab.eval_on_selector_all(f"{table} tbody tr", cells)


def test_the_slider_moves_everything(opened, explored):
    data = data_of(explored[-1])
    exact = data["methods"][1]
    opened.focus("#radius")
    opened.keyboard.press("Home")
    before = {part: opened.inner_html(f"#{part}") for part in ("curves", "strips", "decision")}
    seen = []
    for k, radius in enumerate(data["radii"]):
        assert float(opened.text_content("#radius-value")) == radius
        assert opened.get_attribute("#radius", "aria-valuetext") == f"radius {radius:g}"
        rows = [row for row in rows_of(opened, "#now") if row[0] == "exact"]
        assert [row[1] for row in rows] == data["sets"]
        for s, row in enumerate(rows):
            assert float(row[2]) == pytest.approx(exact["promise"][k], rel=1e-4)
            assert float(row[3]) == pytest.approx(exact["losses"][s]["mean"][k], rel=1e-4)
            assert float(row[6]) == pytest.approx(exact["losses"][s]["cvar"][k], rel=1e-4)
        drawn = opened.eval_on_selector_all(
            "#decision rect", "bars => bars.map(bar => bar.getBBox().width)"
        )
        shares = np.array(exact["decision"][k])
        np.testing.assert_allclose(np.array(drawn) / sum(drawn), shares / shares.sum(), atol=1e-3)
        moved = rows_of(opened, "#moved")
        assert len(moved) == (0 if radius == 0 else 8)
        assert opened.is_visible("#moved-case") == (radius > 0)
        seen.append(opened.inner_html("#strips"))
        opened.keyboard.press("ArrowRight")
    assert len(set(seen)) == len(data["radii"])
    for part, source in before.items():
        assert opened.inner_html(f"#{part}") != source


def test_another_method_is_chosen(opened):
    decision = opened.inner_html("#decision")
    opened.check("input[name=method][value='0']")
    assert opened.inner_html("#decision") != decision
    assert not opened.is_visible("#worst-case")


@pytest.mark.parametrize("table", ["#now", "table.report >> nth=0"])
def test_a_click_sorts_and_the_slider_keeps_the_order(opened, table):
    button = opened.locator(table).locator("thead th >> nth=4").locator("button")
    column = opened.locator(table).locator("tbody tr").locator("td >> nth=3")

    def numbers():
        texts = opened.locator(table).locator("tbody tr").all()
        return [float(row.locator("th, td").nth(4).text_content()) for row in texts]

    assert column.count() > 0
    first = numbers()
    button.click()
    assert numbers() == sorted(first)
    assert opened.locator(table).locator("th[aria-sort=ascending]").count() == 1
    button.press("Enter")
    assert numbers() == sorted(first, reverse=True)
    opened.focus("#radius")
    opened.keyboard.press("End")
    assert numbers() == sorted(numbers(), reverse=True)


def test_nothing_is_wider_than_the_window(opened):
    assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert opened.evaluate("document.querySelector('#radius').clientWidth") > 100
