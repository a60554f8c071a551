import csv

import pytest

from benchmarks.step import __main__ as step
from benchmarks.step.figures import Effort

pytestmark = pytest.mark.process


@pytest.mark.filterwarnings("ignore")  # warnings of the peers
def test_one_command_measures_checks_and_writes(tmp_path, capsys, monkeypatch):
    quick = Effort(cpu_rounds=1, cuda_rounds=1, phase_rounds=1, accuracy_steps=10, seeds=1)
    monkeypatch.setattr(step, "QUICK", quick)
    arguments = ["--device", "cpu", "--sizes", "tiny", "--quick", "--output", str(tmp_path)]
    assert step.main(arguments) == 0
    with (tmp_path / "step.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 5 * 4 * 2
    assert all(row["device"] and row["torch"] and row["requested"] for row in rows)
    assert all(row["effective"] != "not run" or row["remark"] for row in rows)
    with (tmp_path / "findings.csv").open(newline="") as file:
        verdicts = {row["what"]: row["verdict"] for row in csv.DictReader(file)}
    assert verdicts["host reads per step, ours, most of all cases"] == "pass"
    assert all(verdicts.values())
    out = capsys.readouterr().out
    assert "TF32 exists on CUDA only" in out
    assert "limit" in out
