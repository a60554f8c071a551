import re
from pathlib import Path

import pytest

from benchmarks.waltzrl.__main__ import main


@pytest.mark.process  # trains for seconds
def test_it_measures_each_stage_and_keeps_what_it_has_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--quick", "--rounds", "1", "--seed", "4", "--output", str(tmp_path)]
    assert main(arguments) == 0
    first = capsys.readouterr().out
    stages = ["conversation agent alone", "untrained pair", "oracle feedback"]
    stages += ["after stage 1", "after stage 2", "without feedback, stage 2"]
    for stage in stages:
        measured = (
            rf"fp32, seed 4, {stage}: attack success [01]\.\d{{3}}, over-refusal [01]\.\d{{3}},"
        )
        assert re.search(measured, first)
        assert first.count(stage) >= 2  # once when it was measured, once in the table
    assert main(arguments) == 0
    again = capsys.readouterr().out
    assert "seed 4" not in again
    assert again.splitlines()[1:] == first.splitlines()[-len(stages) - 1 :]
    with pytest.raises(SystemExit, match="made with other options"):
        main(["--quick", "--rounds", "2", "--seed", "4", "--output", str(tmp_path)])
