"""A run that is stopped goes on where it was, and ends with the same table."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from experiments import EXPERIMENTS
from records import Records, fingerprint, write_atomically
from reproduce import main
from reproduction import reproduce
from tree_density import TreeDensity
from tree_methods import TreeModel
from tree_trial import TreeSettings, tree_model
from wdro_model.datasets import quadratic_tree
from wdro_model.sets import SpanningTree

SCRIPT = Path(sys.modules["reproduce"].__file__)


def small():
    quick = TreeDensity.quick()
    trees = replace(quick.trees, iterations=20, tests=10)
    return replace(quick, trees=trees, edges=(15, 30), instances=2)


def smallest():
    return replace(small(), edges=(15,), instances=1)


def files(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("records-*/*.json")}


def test_finished_instances_are_not_computed_again(tmp_path, monkeypatch):
    experiment, ran = small(), []
    original = TreeDensity.run

    def interrupted(self, key):
        if len(ran) == 2:
            raise KeyboardInterrupt
        ran.append(key)
        return original(self, key)

    monkeypatch.setattr(TreeDensity, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        reproduce(experiment, tmp_path / "stopped", jobs=1, progress=False)
    assert not (tmp_path / "stopped" / experiment.name / "table.csv").exists()
    before = files(tmp_path / "stopped" / experiment.name)
    assert len(before) == 2

    def counted(self, key):
        ran.append(key)
        return original(self, key)

    monkeypatch.setattr(TreeDensity, "run", counted)
    done = reproduce(experiment, tmp_path / "stopped", jobs=1, progress=False)
    assert ran == experiment.keys()
    after = files(done.folder)
    assert {name: after[name] for name in before} == before

    monkeypatch.setattr(TreeDensity, "run", original)
    straight = reproduce(experiment, tmp_path / "straight", jobs=2, progress=False)
    for name in ("table.csv", "instances.csv", "settings.json"):
        assert (straight.folder / name).read_text() == (done.folder / name).read_text()


def interrupted(arguments, folder):
    """Run the command, press Ctrl-C once an instance is finished: (exit code, what it printed)."""
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        # Under a shell's "&" interrupts are ignored, and that is passed on to children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not files(folder) and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=60)
    return process.returncode, printed


def test_control_c_from_outside(tmp_path):
    for attempt in range(4):  # on a busy machine all may be finished before the signal is sent
        output = tmp_path / f"stopped{attempt}"
        arguments = ["tree-density", "--quick", "--output", str(output)]
        folder = output / "tree-density"
        code, printed = interrupted(arguments, folder)
        if code != 0:
            break
    assert code == 130
    assert "goes on from them" in printed
    before = files(folder)
    assert 1 <= len(before) < len(TreeDensity.quick().keys())

    assert main(arguments) == 0
    after = files(folder)
    assert {name: after[name] for name in before} == before
    assert main([*arguments[:-1], str(tmp_path / "straight")]) == 0
    tables = [run / "tree-density" / "table.csv" for run in (output, tmp_path / "straight")]
    assert tables[0].read_bytes() == tables[1].read_bytes()


def test_half_a_solve_is_no_result(monkeypatch):
    instance = quadratic_tree(8, 15, seed=0)
    model = tree_model(TreeSettings(nodes=8), instance, instance.training.lazy(12, 1), 2)
    calls, original = [], SpanningTree.free_answer

    def later(self, direction):
        calls.append(1)
        if len(calls) > 20:
            raise KeyboardInterrupt
        return original(self, direction)

    monkeypatch.setattr(SpanningTree, "free_answer", later)
    with pytest.raises(KeyboardInterrupt):
        TreeModel.sampled(model)


def test_changed_settings_are_not_mixed(tmp_path):
    one, other = smallest(), replace(smallest(), seed=1)
    first = reproduce(one, tmp_path, progress=False)
    table = first.table.read_text()
    reproduce(other, tmp_path, progress=False)
    assert len(list(first.folder.glob("records-*"))) == 2
    assert first.table.read_text() != table
    assert reproduce(one, tmp_path, progress=False).table.read_text() == table


def test_fresh_computes_everything(tmp_path):
    done = reproduce(smallest(), tmp_path, progress=False)
    before = files(done.folder)
    reproduce(smallest(), tmp_path, progress=False, fresh=True)
    after = files(done.folder)
    assert before.keys() == after.keys()
    assert all(after[name] > before[name] for name in before)


def test_records_that_are_broken_or_foreign_count_as_missing(tmp_path):
    records = Records(tmp_path, {"a": 1})
    records.save("one", {"value": 0.1})
    assert records.load("one") == {"value": 0.1}
    assert records.load("two") is None
    records.path("two").write_text('{"settings": ', encoding="utf-8")
    assert records.load("two") is None
    records.path("two").write_text(json.dumps({"settings": "other", "record": {}}))
    assert records.load("two") is None
    records.path("two").write_text("[]")
    assert records.load("two") is None


def test_fingerprints_change_with_any_setting():
    settings = [EXPERIMENTS[name]().settings() for name in EXPERIMENTS]
    settings += [kind.quick().settings() for kind in EXPERIMENTS.values()]
    settings += [TreeDensity(seed=1).settings()]
    assert len({fingerprint(each) for each in settings}) == len(settings)


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file.json"
    write_atomically(path, "old")

    def refused(source, target):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", refused)
    with pytest.raises(OSError, match="no space"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file.json"]
