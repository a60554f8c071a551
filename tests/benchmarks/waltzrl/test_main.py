import re
from pathlib import Path

import pytest

from benchmarks.waltzrl.__main__ import PAPER, REWARDS, main


@pytest.mark.process  # trains for seconds
def test_it_measures_each_stage_and_keeps_what_it_has_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--quick", "--rounds", "1", "--seed", "4", "--ablations"]
    arguments += ["--output", str(tmp_path)]
    assert main(arguments) == 0
    first = capsys.readouterr().out
    before = ["conversation agent alone", "oracle feedback", "untrained pair"]
    stages = ["after stage 1", "after stage 2", "without feedback, stage 2"]
    pairs = [(PAPER, each) for each in before]
    pairs += [(reward, each) for reward in REWARDS for each in stages]
    for reward, pair in pairs:
        measured = (
            rf"fp32, seed 4, {reward}, {pair}: attack success [01]\.\d{{3}}, "
            rf"over-refusal [01]\.\d{{3}},"
        )
        assert re.search(measured, first)
        assert re.search(rf"^fp32 +{reward} +{pair} .* 0 of 1\d\d$", first, re.MULTILINE)
    assert main(arguments) == 0
    again = capsys.readouterr().out
    assert "seed 4" not in again
    assert again.splitlines()[1:] == first.splitlines()[-len(pairs) - 1 :]
    with pytest.raises(SystemExit, match="other options"):
        main(["--quick", "--rounds", "1", "--seed", "4", "--output", str(tmp_path)])
