"""The gain of each preset against FP32, and its interval over the seeds."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from scipy.special import stdtrit  # scipy.stats takes a second to import

from infrastructure.precision_lab.report import read_results
from infrastructure.precision_lab.report.sections.learning import learning, mean_interval
from tests.infrastructure.precision_lab.report.results_folder import write_cell, write_json


@pytest.mark.parametrize("count", [2, 3, 5, 10, 11, 12, 30])
def test_the_interval_is_students(count: int) -> None:
    values = [math.sin(each) for each in range(count)]
    mean, low, high = mean_interval(values)
    spread = math.sqrt(sum((each - mean) ** 2 for each in values) / (count - 1) / count)
    half = spread * stdtrit(count - 1, 0.975)
    assert (low, high) == pytest.approx((mean - half, mean + half), abs=2e-3)


def test_one_seed_has_no_interval() -> None:
    assert mean_interval([0.5]) == (0.5, -math.inf, math.inf)


def test_a_preset_that_harms_learning_is_marked(tmp_path: Path) -> None:
    for seed in range(3):
        write_cell(tmp_path, "fp32_baseline", seed, reward=0.9 + seed / 100)
        collapsed = "kl_penalty_collapsed"  # does not stop a training
        write_cell(tmp_path, "bf16_pure", seed, reward=0.5 + seed / 90, category=collapsed)
        write_cell(tmp_path, "bf16_fp32_kl", seed, reward=0.89 + seed / 50)
    write_cell(tmp_path, "fp16_pure", 0, category="nan_loss", updates=7)
    section = learning(read_results(tmp_path))
    (table,) = section.tables
    rows = {row[0]: row for row in table.rows}
    tones = {row[0]: table.tone(number, 5) for number, row in enumerate(table.rows)}
    # The reward of update n is n / 20 of the last; ends are medians of updates 17 to 20.
    assert rows["fp32_baseline"][1] == "3"
    assert rows["fp32_baseline"][2].endswith("[0.044, 0.047]")
    assert rows["fp32_baseline"][3].startswith("0.842 [")
    assert rows["fp32_baseline"][4].startswith("0.796 [")
    assert rows["bf16_pure"][5].startswith("-0.369 [-0.3")
    assert rows["fp16_pure"][1:] == ["0", *["no value"] * 4]  # it has not ended
    assert tones == {"fp32_baseline": "", "bf16_pure": "bad", "bf16_fp32_kl": "", "fp16_pure": ""}
    assert len(section.notes) == 1


def test_a_baseline_that_does_not_learn_is_said(tmp_path: Path) -> None:
    for seed, reward in enumerate((0.3, -0.3)):
        write_cell(tmp_path, "fp32_baseline", seed, reward=reward)
    assert "clearly learnt" in learning(read_results(tmp_path)).notes[-1]


def test_without_a_sweep_the_command_is_named(tmp_path: Path) -> None:
    write_json(tmp_path / "bisect.json", {"culprits": []})
    assert "lab sweep" in learning(read_results(tmp_path)).absent
