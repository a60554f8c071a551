from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.policy import learning
from benchmarks.policy.__main__ import main

pytestmark = pytest.mark.process  # trains for seconds


def test_curves_are_kept_and_made_with_the_same_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["learn", "--task", "brackets", "--precision", "fp32", "--seed", "3"]
    command += ["--rounds", "1", "--output", str(tmp_path)]
    assert main(command) == 0
    first = capsys.readouterr().out
    assert "brackets-fp32-none-3: 0." in first
    assert "after 75, " in first
    kept = (tmp_path / "learning" / "brackets-fp32-none-3" / "curve.json").read_text()
    assert (tmp_path / "learning.csv").read_text().startswith("task,precision,correction,seeds")
    assert (tmp_path / "learning.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(learning, "train", None)  # nothing is trained again
    assert main(command) == 0
    assert capsys.readouterr().out == first
    assert (tmp_path / "learning" / "brackets-fp32-none-3" / "curve.json").read_text() == kept
    with pytest.raises(SystemExit, match="made with other options"):
        main([*command, "--learning-rate", "0.01"])
