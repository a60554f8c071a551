"""Sections: each shows what there is, and says what is missing and which command makes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from infrastructure.precision_lab.report import read_results
from infrastructure.precision_lab.report.sections import Section, all_sections
from tests.infrastructure.precision_lab.report.results_folder import (
    write_json,
    write_sweep,
)

pytestmark = pytest.mark.process  # trains for seconds


def sections(folder: Path) -> dict[str, Section]:
    return {each.anchor: each for each in all_sections(read_results(folder))}


def test_a_sweep_fills_the_sections_of_training(tmp_path: Path) -> None:
    write_sweep(tmp_path)
    found = sections(tmp_path)
    filled = {anchor for anchor, section in found.items() if not section.absent}
    trained = {"kl", "rewards", "values", "accumulated", "mismatch", "clipping", "gradients"}
    assert filled == {"stability", "learning", "stagnation", *trained}
    assert all(found[anchor].figures for anchor in trained)


def test_what_is_missing_is_said_with_the_command_that_makes_it(tmp_path: Path) -> None:
    write_json(tmp_path / "bisect.json", {"culprits": []})
    found = sections(tmp_path)
    assert [anchor for anchor, each in found.items() if not each.absent] == ["bisect"]
    for section in found.values():
        if section.absent:
            assert re.search("genesis-fp16 lab|python -m benchmarks", section.absent)
            assert (section.figures, section.tables) == ([], [])
