"""The experiments of the paper, as a user runs them."""

import csv
import json

import numpy as np
import pytest

from experiments import EXPERIMENTS
from reproduce import main


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_quick_reproductions(name, tmp_path, capsys):
    assert main([name, "--quick", "--output", str(tmp_path)]) == 0
    folder = tmp_path / name
    with open(folder / "table.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {"erm", "sampled", "smoothed"} <= {row["method"] for row in rows}
    for row in rows:
        assert float(row["cvar95"]) >= float(row["mean"])
        if row["method"] == "erm":
            assert float(row["advantage"]) == 0.0
        if row["method"] == "sampled":
            assert 1.0 <= float(row["effective_draws"]) <= float(row["draws"])
    assert (folder / "figure.png").read_bytes()[:4] == b"\x89PNG"
    about = json.loads((folder / "settings.json").read_text())
    assert about["settings"]["experiment"] == name
    assert about["settings"]["seed"] == 0
    assert len(about["instances"]) == len(EXPERIMENTS[name].quick().keys())
    printed = capsys.readouterr().out
    assert name in printed
    assert str(folder) in printed


def test_expected_advantages_stand_beside_the_measured_ones(tmp_path):
    main(["tree-density", "--quick", "--output", str(tmp_path)])
    folder = tmp_path / "tree-density"
    with open(folder / "expected.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert (folder / "expected.png").read_bytes()[:4] == b"\x89PNG"
    robust = [row for row in rows if row["method"] == "smoothed"]
    found = {
        name: [
            (float(r["expected"]), float(r["measured"])) for r in robust if r["scenarios"] == name
        ]
        for name in ("half shifted", "independent", "complement")
    }
    assert all(expected == pytest.approx(0.0) for expected, _ in found["independent"])
    for name, sign in (("half shifted", -1), ("complement", 1)):
        expected, measured = np.mean(found[name], axis=0)
        assert sign * expected > 0.02
        assert sign * measured > 0.02


def test_full_settings_are_those_of_the_paper():
    trees = EXPERIMENTS["tree-shift"]().settings()
    assert (trees["trees"]["nodes"], trees["edges"]) == (50, 331)
    density = EXPERIMENTS["tree-density"]().settings()
    assert len(density["edges"]) == density["instances"] == 10
    assert density["edges"][:3] == (75, 203, 331)
    assert density["edges"][-1] == 1225
    for settings in (trees["trees"], density["trees"]):
        chosen = [settings[key] for key in ("radius", "epsilon", "draws", "batch_size")]
        assert chosen == [10.0, 1e-4, 10, 10]
        assert settings["iterations"] == 5000
    traffic = EXPERIMENTS["traffic"]().settings()
    chosen = [traffic[key] for key in ("radius", "epsilon", "draws", "batch_size", "iterations")]
    assert chosen == [17.0, 1e-3, 100, 10, 5000]


def test_help_has_a_line_for_each_experiment(capsys):
    with pytest.raises(SystemExit) as error:
        main(["--help"])
    assert error.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    for name, kind in EXPERIMENTS.items():
        assert [line.split(maxsplit=1) for line in lines].count([name, kind.title]) == 1


def test_unknown_experiments_are_refused_with_the_names(capsys):
    with pytest.raises(SystemExit) as error:
        main(["tree-shifted"])
    assert error.value.code == 2
    printed = capsys.readouterr().err
    assert all(name in printed for name in EXPERIMENTS)


@pytest.mark.parametrize("jobs", ["0", "many"])
def test_bad_numbers_of_jobs_are_refused(jobs, capsys):
    with pytest.raises(SystemExit):
        main(["tree-shift", "--jobs", jobs])
    assert repr(jobs) in capsys.readouterr().err
