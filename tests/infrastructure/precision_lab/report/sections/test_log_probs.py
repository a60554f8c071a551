"""Sections of log-probabilities: the mismatch of a replay, errors of trainings."""

from __future__ import annotations

from pathlib import Path

import pytest

from infrastructure.precision_lab.report import read_results
from infrastructure.precision_lab.report.sections.log_probs import accumulated_error, mismatch
from tests.infrastructure.precision_lab.report.results_folder import write_cell, write_json


def test_a_replay_shows_the_distribution_of_the_mismatch(tmp_path: Path) -> None:
    tokens = {"mismatch": [1e-3, -2e-3, "nan", 0.0, [1], 5e-3]}
    write_json(tmp_path / "replay" / "bf16_pure.json", {"tokens": tokens})
    write_json(tmp_path / "replay" / "fp16_pure.json", {"tokens": 7})
    section = mismatch(read_results(tmp_path))
    assert [figure.name for figure in section.figures] == ["mismatch-distribution"]
    assert "genesis-fp16 lab compare" in accumulated_error(read_results(tmp_path)).absent


@pytest.mark.process
def test_trainings_show_both_errors(tmp_path: Path) -> None:
    write_cell(tmp_path, "bf16_pure", 0)
    results = read_results(tmp_path)
    assert [each.name for each in mismatch(results).figures] == ["mismatch"]
    assert [each.name for each in accumulated_error(results).figures] == ["accumulated-in-training"]
