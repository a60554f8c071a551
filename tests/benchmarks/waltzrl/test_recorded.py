from pathlib import Path

import pytest

from benchmarks.waltzrl.recorded import main


@pytest.mark.process  # trains for seconds
def test_it_prints_what_a_run_reports_or_why_nothing_was_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--agent", "feedback", "--replies", "1000", "--steps", "20"]) == 0
    printed = capsys.readouterr().out
    for name in ("improvement.auroc", "feedback_gain_standard_error", "best_of_k.uplift"):
        assert f"\n  {name} " in printed
    assert "held-out groups" in printed
    assert main(["--folder", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for agent in ("feedback", "conversation"):
        assert f"\n{agent}: refused: 0 conversations recorded, 200" in printed
