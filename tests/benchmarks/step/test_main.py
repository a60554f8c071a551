import csv

import pytest
import torch

from benchmarks.step import __main__ as step
from benchmarks.step.accuracy import compare_accuracy
from benchmarks.step.figures import Effort
from benchmarks.step.models import SIZES

pytestmark = pytest.mark.process

CPU = torch.device("cpu")


@pytest.mark.filterwarnings("ignore")  # the peers' own
def test_one_command_measures_judges_and_writes(tmp_path, capsys, monkeypatch):
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


def test_accuracy_compares_trainings_that_differ_in_precision_alone():
    figure = compare_accuracy(SIZES["tiny"], "bf16", CPU, steps=20, seeds=2)
    assert figure.spread is not None
    assert figure.spread.median == pytest.approx(1.0, abs=0.02)
    assert figure.spread.median != 1.0


def test_accuracy_of_one_precision_against_itself_is_refused():
    figure = compare_accuracy(SIZES["tiny"], "fp32", CPU, steps=2, seeds=1)
    assert figure.verdict.startswith("refused: both computed fp32")
