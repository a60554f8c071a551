"""The static comparison as a command runs it: what it writes and what it refuses."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from infrastructure.precision_lab.small_policy import BASE_MODEL, BasePolicy, small_policy
from infrastructure.precision_lab.static_comparison import (
    ComparisonError,
    ComparisonRequest,
    half_types,
    run_comparison,
)
from infrastructure.precision_lab.static_comparison.compare import COLUMNS

pytestmark = pytest.mark.process  # trains for seconds


@pytest.fixture(scope="module")
def base() -> BasePolicy:
    return small_policy(seed=0, prompts=2, steps=1)


def request(**changes: object) -> ComparisonRequest:
    small = {"prompts": 2, "lengths": (24,), "temperatures": (1.0,), "device": "cpu"}
    return ComparisonRequest(**{**small, **changes})  # type: ignore[arg-type]


def test_two_files_hold_the_results(base: BasePolicy, tmp_path: Path) -> None:
    result = run_comparison(request(lengths=(24, 5000, 24)), tmp_path, base=base)
    with (tmp_path / "probe" / "probe_results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) == len(result.by_position)
    text = (tmp_path / "probe" / "summary.json").read_text()
    summary = json.loads(text, parse_constant=pytest.fail)
    assert summary["weights_sha256"] == result.weights_sha256
    assert summary["not_measured"] == ["length 5000: the model's context is 1024 tokens"]
    assert summary["request"]["base_model"] == BASE_MODEL
    assert summary["environment"]["device"] == "cpu"
    assert summary["precision"] == {"bf16": "bf16/bf16/fp32", "fp16": "fp16/fp16/fp32"}
    assert {each["dtype"] for each in summary["by_length"]} == {"bf16", "fp16"}
    assert all(each["sequence_error_mean"] > 0 for each in summary["by_length"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperatures": (0.0,)}, "temperature"),
        ({"device": "gpu"}, "device .*auto, cpu"),
        ({"prompts": 0}, "one prompt"),
        ({"lengths": (1,)}, "lengths .* 2"),
        ({"lengths": (4000,)}, "1024 tokens"),
        ({"lengths": (4,)}, "no room"),
    ],
)
def test_a_request_that_cannot_be_met(
    changes: dict[str, object], message: str, base: BasePolicy, tmp_path: Path
) -> None:
    with pytest.raises(ComparisonError, match=message):
        run_comparison(request(**changes), tmp_path, base=base)


def test_half_types_are_checked_by_name() -> None:
    assert half_types(["fp16", "bf16"]) == ("fp16", "bf16")
    with pytest.raises(ComparisonError, match="'fp8'"):
        half_types(["fp8"])
