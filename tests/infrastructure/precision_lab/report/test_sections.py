"""Sections: each shows what there is, and says what is missing and which command makes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from infrastructure.precision_lab.report import read_results
from infrastructure.precision_lab.report.sections import Section, all_sections
from tests.infrastructure.precision_lab.report.results_folder import (
    write_cell,
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
    assert filled == {"stability", "stagnation", *trained}
    assert all(found[anchor].figures for anchor in trained)
    table = found["stability"].tables[0]
    assert table.head[:3] == ["preset", "seed 0", "seed 1"]
    assert [row[:3] for row in table.rows] == [
        ["fp32_baseline", "completed", "completed"],
        ["bf16_pure", "nan_loss at update 7", "completed"],
        ["bf16_fp32_kl", "completed", "completed"],
    ]
    assert table.tone(1, 1) == "bad"
    assert table.tone(1, 2) == "good"
    assert table.rows[0][3] == "0.837 [0.833, 0.842]"  # medians of updates 17 to 20
    (gradients,) = found["gradients"].tables
    assert gradients.rows[0] == ["fp32_baseline", "40", "2", "2", "150"]


def test_what_is_missing_is_said_with_the_command_that_makes_it(tmp_path: Path) -> None:
    write_json(tmp_path / "bisect.json", {"culprits": []})
    found = sections(tmp_path)
    assert [anchor for anchor, each in found.items() if not each.absent] == ["bisect"]
    assert found["bisect"].notes == ["No place loses more than the noise of FP32 explains."]
    for section in found.values():
        if section.absent:
            assert re.search("genesis-fp16 lab|python -m benchmarks", section.absent)
            assert (section.figures, section.tables) == ([], [])


def test_a_metric_that_no_cell_has_is_named(tmp_path: Path) -> None:
    write_cell(tmp_path, "fp16_pure", 0, updates=0).append({"step": 1, "loss": 1.0})
    assert sections(tmp_path)["gradients"].absent == "No cell has a finite value of grad_norm."


def test_the_probe_is_shown_by_position_and_length(tmp_path: Path) -> None:
    head = (
        "dtype,temperature,seq_length,last_position,real_logp_error_mean,simulated_logp_error_mean"
    )
    rows = [f"{d},1.0,64,{p},{p * 1e-4},1e-4" for d in ("bf16", "fp16") for p in (7, 15, 31)]
    (tmp_path / "probe").mkdir()
    (tmp_path / "probe" / "probe_results.csv").write_text("\n".join([head, *rows, ""]))
    row = {
        "dtype": "bf16",
        "temperature": 1.0,
        "seq_length": 64,
        "tokens": 400,
        "nonfinite_tokens": 0,
        "simulated_logp_error_mean": 1e-4,
        "real_logp_error_mean": 2e-4,
        "kernel_contribution": 1e-4,
        "real_kl": None,
        "sequence_error_mean": 0.01,
    }
    summary = {"by_length": [row, {"dtype": 3}, "x"], "not_measured": ["length 9: why"]}
    write_json(tmp_path / "probe" / "summary.json", summary)
    found = sections(tmp_path)
    assert [figure.name for figure in found["probe"].figures] == ["probe-by-position"]
    (table,) = found["probe"].tables
    assert table.rows == [["bf16", "1", "64", "400", "0", "0.0001", "0.0002", "0.0001", "none"]]
    assert found["probe"].notes == ["Not measured: length 9: why."]
    assert [f.name for f in found["accumulated"].figures] == ["accumulated-by-length"]


def test_a_replay_shows_gradients_and_the_distribution_of_the_mismatch(tmp_path: Path) -> None:
    tokens = {"mismatch": [1e-3, -2e-3, "nan", 0.0, [1], 5e-3]}
    gradients = {"relative_error": 0.25, "cosine": "nan"}
    replayed = {"tokens": tokens, "gradients": gradients, "errors": {"loss": 3}}
    write_json(tmp_path / "replay" / "bf16_pure.json", replayed)
    write_json(tmp_path / "replay" / "fp16_pure.json", {"tokens": 7})
    found = sections(tmp_path)
    assert [figure.name for figure in found["mismatch"].figures] == ["mismatch-distribution"]
    assert [figure.name for figure in found["replay"].figures] == ["replay-gradients"]
    assert [row[:4] for row in found["replay"].tables[0].rows] == [
        ["bf16_pure", "0.25", "nan", "none"],
        ["fp16_pure", "none", "none", "none"],
    ]


def test_a_bisection_is_ranked_with_the_settings_to_paste(tmp_path: Path) -> None:
    culprits = [
        {"place": "policy:lm_head:compute", "share": 0.75, "partners": []},
        {"place": "kl::reduction", "share": "?", "partners": ["policy:lm_head:compute"]},
    ]
    settings = ["keep_fp32=['lm_head']  # modules of the role policy", "kl = fp32/fp32/fp32"]
    result = {
        "culprits": culprits,
        "settings": settings,
        "runs": 12,
        "seconds": 8.4,
        "time_ratio": 1.1,
    }
    write_json(tmp_path / "bisect.json", result)
    section = sections(tmp_path)["bisect"]
    ranked, pasted = section.tables
    assert ranked.rows == [
        ["1", "policy:lm_head:compute", "75%", ""],
        ["2", "kl::reduction", "unknown", "policy:lm_head:compute"],
    ]
    assert pasted.rows == [[line] for line in settings]
    assert "12 repetitions and 8 seconds" in section.notes[0]


def test_the_hypotheses_are_shown_for_each_model(tmp_path: Path) -> None:
    folder = tmp_path / "hypotheses" / "small"
    folder.mkdir(parents=True)
    head = "hypothesis,claim,figure,interval,rule,verdict,would decide\n"
    (folder / "verdicts.csv").write_text(head + 'H1,"a, b",f,0.1,above 0,refuted,\n')
    (table,) = sections(tmp_path)["hypotheses"].tables
    assert (table.title, table.tone(0, 0)) == ("small", "wrap")
    assert table.rows == [["H1", "a, b", "0.1", "above 0", "refuted", ""]]
