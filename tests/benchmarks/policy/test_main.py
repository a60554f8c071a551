import csv
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.policy import __main__ as command


@pytest.mark.process
def test_a_run_prints_its_table_and_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = replace(command.SMALL_QUICK, prompts=2, new_tokens=3, steps=1, resamples=5)
    monkeypatch.setattr(command, "SMALL_QUICK", few)
    arguments = ["mismatch", "--quick", "--output", str(tmp_path)]

    assert command.main(arguments) == 0
    first = capsys.readouterr().out
    assert command.main(arguments) == 0
    again = capsys.readouterr().out

    assert "BF16/BF16 divided by FP16/FP16, k3:" in first
    assert "rollout-bf16:" in first
    assert "rollout-bf16:" not in again  # kept
    with (tmp_path / "mismatch-small-quick" / "mismatch.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(each["rollout"], each["trainer"]) for each in rows][:2] == [
        ("bf16", "bf16"),
        ("fp16", "fp16"),
    ]
