from pathlib import Path

import pytest

from benchmarks.policy.mismatch_table import PAIRS, measure_pairs
from benchmarks.policy.scores import Kept
from benchmarks.policy.subjects import Subject


def test_bf16_differs_most_and_fp32_hardly(subject: Subject, tmp_path: Path) -> None:
    results, ratios = measure_pairs(
        subject, Kept(tmp_path, {}), new_tokens=12, group=8, seed=0, resamples=20
    )

    assert [(each.rollout, each.trainer) for each in results] == list(PAIRS)
    k3 = {(each.rollout, each.trainer): each.measures["k3"] for each in results}
    assert k3["fp32", "fp32"].figure < 1e-11
    assert k3["fp32", "fp16"].figure < k3["fp16", "bf16"].figure
    assert k3["fp32", "bf16"].figure == pytest.approx(k3["fp16", "bf16"].figure, rel=0.5)
    for interval in (*k3.values(), *ratios.values()):
        assert interval.low <= interval.figure <= interval.high
    assert 20 < ratios["k3"].figure < 200
    assert ratios["k3"].figure == pytest.approx(
        k3["bf16", "bf16"].figure / k3["fp16", "fp16"].figure
    )
