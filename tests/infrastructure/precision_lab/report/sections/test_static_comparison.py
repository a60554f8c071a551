"""The section of the static comparison: by position and by length."""

from __future__ import annotations

from pathlib import Path

import pytest

from infrastructure.precision_lab.report import read_results
from infrastructure.precision_lab.report.sections.log_probs import accumulated_error
from infrastructure.precision_lab.report.sections.static_comparison import static_comparison
from tests.infrastructure.precision_lab.report.results_folder import write_json


@pytest.mark.process
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
    results = read_results(tmp_path)
    section = static_comparison(results)
    assert [figure.name for figure in section.figures] == ["comparison-by-position"]
    (table,) = section.tables
    assert table.rows == [["bf16", "1", "64", "400", "0", "0.0001", "0.0002", "0.0001", "none"]]
    assert section.notes == ["Not measured: length 9: why."]
    assert [each.name for each in accumulated_error(results).figures] == ["accumulated-by-length"]
