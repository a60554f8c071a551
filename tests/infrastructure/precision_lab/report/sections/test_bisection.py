"""The section of the bisection: culprits by rank, settings to paste."""

from __future__ import annotations

from pathlib import Path

from infrastructure.precision_lab.report import read_results
from infrastructure.precision_lab.report.sections.bisection import bisection
from tests.infrastructure.precision_lab.report.results_folder import write_json


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
    section = bisection(read_results(tmp_path))
    ranked, pasted = section.tables
    assert ranked.rows == [
        ["1", "policy:lm_head:compute", "75%", ""],
        ["2", "kl::reduction", "unknown", "policy:lm_head:compute"],
    ]
    assert pasted.rows == [[line] for line in settings]
    assert "12 repetitions and 8 seconds" in section.notes[0]


def test_a_bisection_without_culprit_says_so(tmp_path: Path) -> None:
    write_json(tmp_path / "bisect.json", {"culprits": []})
    section = bisection(read_results(tmp_path))
    assert section.notes == ["No place loses more than the noise of FP32 explains."]
    assert not section.absent
