"""The page on performance says what was measured, and nothing else."""

import figures
import growth
import performance
import pytest


def plain(text):
    """With ordinary spaces."""
    return text.replace("\N{NO-BREAK SPACE}", " ")


def test_the_tables_of_the_page_are_those_of_the_last_measurements():
    page = performance.PAGE.read_text()
    assert performance.written(page, figures.stored()) == page


def test_every_measurement_is_on_the_page():
    assert set(figures.stored()) == set(performance.MEASURES)
    assert {match[2] for match in performance.REGION.finditer(performance.PAGE.read_text())} == set(
        performance.REGIONS
    )


def test_an_aim_that_is_missed_is_explained():
    known = figures.stored()
    for name in performance.TARGETS:
        missed = [f.what for f in performance.figures(known, name) if not f.is_met]
        assert not missed or name in performance.WHY, (name, missed)


@pytest.mark.parametrize(
    ("figure", "row"),
    [
        (
            figures.Figure("call", 0.002, 0.001, "bare", 1.2),
            "| call | 2 ms | bare 1 ms | 2 x | 1.2 x | **not met** |",
        ),
        (
            figures.Figure("call", 1e-5, 0.001, "peer", 0.5, note="optimal"),
            "| call | 10 µs | peer 1 ms | 1 / 100 | 0.5 x | met; optimal |",
        ),
        (
            figures.Figure("memory", 120.0, aim=200.0, unit="MB"),
            "| memory | 120 MB |  |  | 200 MB | met |",
        ),
        (figures.Figure("long", 1234.0), "| long | 1234 s |  |  |  |  |"),
    ],
)
def test_a_figure_is_told_against_its_aim(figure, row):
    assert plain(figure.row()) == row


def test_growth_is_a_column_for_each_size():
    table = growth.Growth("solve, N", "by hand", (100, 1000), (0.01, 0.1), (0.02, None)).rows()
    assert plain(table).splitlines() == [
        "| solve, N | 100 | 1,000 |",
        "|---|---|---|",
        "| here | 10 ms | 100 ms |",
        "| by hand | 20 ms | - |",
    ]


def test_a_measurement_in_a_process_of_its_own_gives_its_figures_back():
    assert figures.measured_apart(map, abs, [1.5, -3.0]) == [1.5, 3.0]
