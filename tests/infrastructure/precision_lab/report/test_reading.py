"""Reading results: what is damaged costs only itself, and is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infrastructure.precision_lab.report import ReportError, read_results
from infrastructure.precision_lab.report.page import origin
from infrastructure.precision_lab.report.reading import preset_order
from infrastructure.precision_lab.report.sections import all_sections
from infrastructure.precision_lab.report.verdict import verdict
from tests.infrastructure.precision_lab.report.results_folder import write_cell, write_sweep

SUMMARY = "runs/bf16_pure_seed0/run_summary.json"
STEPS = "runs/bf16_pure_seed0/step_metrics.jsonl"


def test_a_sweep_is_read_in_the_order_of_the_presets(tmp_path: Path) -> None:
    write_sweep(tmp_path)
    found = read_results(tmp_path)
    assert found.problems == []
    assert found.presets == ["fp32_baseline", "bf16_pure", "bf16_fp32_kl"]
    assert found.seeds == [0, 1]
    first = found.cells[0]
    assert len(first.series("grad_norm")) == 20
    assert len(first.values("grad_norm")) == 19
    assert len(first.series("update_stagnation_rate")) == 19
    assert preset_order("a-preset-of-ours") > preset_order("precision-rl")


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="not a folder"):
        read_results(tmp_path / "nowhere")
    with pytest.raises(ReportError, match="no result"):
        read_results(tmp_path)
    (tmp_path / "bisect.json").write_text("not JSON")
    with pytest.raises(ReportError, match=r"bisect\.json: is not JSON"):
        read_results(tmp_path)


@pytest.mark.parametrize(
    ("path", "content", "problem"),
    [
        (SUMMARY, "{", "is not JSON"),
        (SUMMARY, "[]", "JSON object"),
        (SUMMARY, '{"format": 99}', "format 99"),
        (SUMMARY, '{"format": 1, "preset": "x"}', "summary of a cell"),
        (STEPS, '{"loss": "<b>"}\n', "line 1: expected"),
        (STEPS, '{"loss": [1]}\n', "line 1: float"),
        (STEPS, "{}\nnull\n", "line 2"),
        ("experiment_manifest.json", "[" * 100_000, "is not JSON"),
        ("probe/probe_results.csv", "dtype,tokens\nbf16,many\n", "tokens is not a number: 'many'"),
        ("probe/probe_results.csv", "dtype,tokens\nbf16\n", "number of columns"),
        ("probe/probe_results.csv", "\0", "probe_results.csv"),
        ("probe/summary.json", "1", "JSON object"),
        ("replay/bf16_pure.json", "nan", "is not JSON"),
        ("bisect.json", "\xff", "is not JSON"),
    ],
)
def test_a_damaged_file_is_named_and_the_rest_is_read(
    path: str, content: str, problem: str, tmp_path: Path
) -> None:
    write_sweep(tmp_path)
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).write_text(content, encoding="latin-1")
    found = read_results(tmp_path)
    assert len(found.cells) == 6
    if content == "\0" and not found.problems:
        return  # a CSV file without rows, for the csv module of some Python versions
    (message,) = found.problems
    assert problem in message
    assert str(tmp_path / path).removesuffix("run_summary.json") in message
    assert sum(cell.summary is None for cell in found.cells) == (path == SUMMARY)
    assert sum(cell.steps == [] for cell in found.cells) == (path == STEPS)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
_NAMES = ("by_length", "not_measured", "culprits", "environment", "tokens", "runs", "seconds")


@pytest.mark.process  # reads for a second
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(
    path=st.sampled_from(["bisect.json", "probe/summary.json", "replay/x.json", SUMMARY, STEPS]),
    content=st.binary(max_size=60)
    | st.dictionaries(st.sampled_from(_NAMES), _JSON, max_size=5).map(
        lambda value: json.dumps(value).encode() + b"\n"
    ),
)
def test_nothing_in_a_file_stops_the_report(path: str, content: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    write_cell(folder, "fp16_pure", 0, updates=0)
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    found = read_results(folder)
    assert verdict(found)
    assert origin(found)
    assert {each.absent != "" for each in all_sections(found)} <= {True, False}
    shutil.rmtree(folder)
