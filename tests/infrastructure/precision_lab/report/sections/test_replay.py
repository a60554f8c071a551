"""The section of replays: errors of the gradient, and values that are no numbers."""

from __future__ import annotations

from pathlib import Path

from infrastructure.precision_lab.report import read_results
from infrastructure.precision_lab.report.sections.replay import replay
from tests.infrastructure.precision_lab.report.results_folder import write_json


def test_a_replay_shows_gradients_and_what_is_no_number(tmp_path: Path) -> None:
    gradients = {"relative_error": 0.25, "cosine": "nan"}
    replayed = {"gradients": gradients, "errors": {"loss": 3}}
    write_json(tmp_path / "replay" / "bf16_pure.json", replayed)
    write_json(tmp_path / "replay" / "fp16_pure.json", {"gradients": 7})
    section = replay(read_results(tmp_path))
    assert [figure.name for figure in section.figures] == ["replay-gradients"]
    assert [row[:4] for row in section.tables[0].rows] == [
        ["bf16_pure", "0.25", "nan", "none"],
        ["fp16_pure", "none", "none", "none"],
    ]
