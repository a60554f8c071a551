"""The command on policies of five training steps: every experiment runs and is kept."""

import csv
import json
from pathlib import Path

import pytest

from benchmarks.precision_lab import __main__ as command
from benchmarks.precision_lab.hypotheses import reference_drift, value_starvation
from benchmarks.precision_lab.hypotheses.command import CLAIMS

pytestmark = pytest.mark.process  # trains for seconds


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_a_quick_run_measures_every_claim_and_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(value_starvation, "_STEPS", 25)
    arguments = ["hypotheses", "--quick", "--seeds", "0", "1", "--output", str(tmp_path)]
    arguments += ["--train", "kl"]

    assert command.main(arguments) == 0
    first = capsys.readouterr().out
    verdicts = _rows(tmp_path / "small" / "verdicts.csv")
    assert command.main(arguments) == 0
    again = capsys.readouterr().out

    assert "seed0:" in first
    assert "seed0:" not in again  # kept
    assert "training1-kl:" in first
    assert _rows(tmp_path / "small" / "verdicts.csv") == verdicts
    assert len(verdicts) == len(CLAIMS) + 4
    others = {f"{role} in bf16: reward lost" for role in ("reward", "value", "reference")}
    assert {each["figure"] for each in verdicts if each["interval"] == "not measured"} == others
    measured = {each["figure"] for each in _rows(tmp_path / "small" / "figures.csv")}
    assert "bf16 KL at 0.001: log_ratio_near_zero_frac" in measured
    assert all(f"{way}: accum_err_final" in measured for way in reference_drift.WAYS)
    kept = json.loads((tmp_path / "small" / "seed1.json").read_text())
    assert kept["figures"].keys() < measured


def test_an_unknown_command_is_named_and_help_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["hypothesis"]) == 2
    assert command.main([]) == 2
    assert command.main(["--help"]) == 0
    assert "hypotheses" in capsys.readouterr().out
