"""The whole command on a few functions; its figures mean nothing."""

import csv

import pytest

from agents.se_darwin.corpus import load_subjects
from benchmarks.se_darwin import __main__ as command
from benchmarks.se_darwin import dataset
from benchmarks.se_darwin.dataset import Effort

pytestmark = pytest.mark.process

SHORT = (  # functions of which each bug has some 200 candidates
    "calendar.isleap",
    "difflib._calculate_ratio",
    "heapq.heappush",
    "string.capwords",
    "xmlrpc.client.escape",
)
TINY = Effort(
    functions=len(SHORT),
    bugs_each=3,
    foreign=1,
    written=1,
    two_edits=1,
    folds=2,
    steps=12,
    seeds=2,
    swing_transitions=800,
    swing_steps=1,
    resamples=50,
)


def _rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.long
def test_one_command_measures_checks_and_writes(tmp_path, capsys, monkeypatch):
    pytest.importorskip("sklearn", reason="scikit-learn comes with the bench extra")
    pytest.importorskip("matplotlib", reason="matplotlib comes with the bench extra")
    monkeypatch.setattr(command, "QUICK", TINY)
    short = [subject for subject in load_subjects() if subject.name in SHORT]
    monkeypatch.setattr(dataset, "load_subjects", lambda: short)
    assert command.main(["--quick", "--output", str(tmp_path), "--parallel", "2"]) == 0
    policies = {row["policy"] for row in _rows(tmp_path / "se_darwin_one_edit.csv")}
    assert {"random", "GenProg-like", "Ochiai sorted", "Ochiai, node decay"} <= policies
    assert {"logistic", "boosting", "ours fp32", "ours bf16", "ours fp16"} <= policies
    checks = _rows(tmp_path / "se_darwin_limits.csv")
    assert {row["verdict"] for row in checks} <= {"met", "MISSED", ""}
    assert len(checks) > 20
    assert _rows(tmp_path / "se_darwin_two_edits.csv")
    assert _rows(tmp_path / "se_darwin_foreign.csv")
    assert len(_rows(tmp_path / "se_darwin_written.csv")) == 1
    assert (tmp_path / "se_darwin.png").stat().st_size > 0
    assert "not a proof" in capsys.readouterr().out
