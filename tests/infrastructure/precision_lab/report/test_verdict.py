"""The verdict: what a reader is told first."""

from __future__ import annotations

import re
from pathlib import Path

from infrastructure.precision_lab.report import read_results
from infrastructure.precision_lab.report.verdict import verdict
from tests.infrastructure.precision_lab.report.results_folder import (
    write_cell,
    write_json,
    write_sweep,
)


def test_failures_and_lost_reward_are_named(tmp_path: Path) -> None:
    write_sweep(tmp_path)
    healthy, failed, worse = verdict(read_results(tmp_path))
    assert re.match(r"2 of 3 .*\(6 of 6 .* 1 failed\)", healthy)
    assert failed.startswith("bf16_pure fails: nan_loss in 1 of 2 seeds")
    assert re.match(r"bf16_fp32_kl .* 0\.833\.$", worse)


def test_a_preset_within_the_seeds_of_fp32_is_not_blamed(tmp_path: Path) -> None:
    for preset, rewards in (("fp32_baseline", (0.8, 0.9)), ("bf16_pure", (0.85,))):
        for seed, reward in enumerate(rewards):
            write_cell(tmp_path, preset, seed, reward=reward)
    assert verdict(read_results(tmp_path))[-1].startswith("No preset that ended")


def test_without_fp32_nothing_is_compared(tmp_path: Path) -> None:
    write_cell(tmp_path, "fp16_pure", 0)
    assert verdict(read_results(tmp_path))[-1].startswith("No reward of fp32_baseline")


def test_the_culprits_of_a_bisection_are_named(tmp_path: Path) -> None:
    path = tmp_path / "bisect.json"
    write_json(path, {"culprits": [{"place": "policy:lm_head:compute"}]})
    (sentence,) = verdict(read_results(tmp_path))
    assert "most at policy:lm_head:compute" in sentence
    write_json(path, {"culprits": []})
    assert "no place" in verdict(read_results(tmp_path))[0]


def test_the_probe_compares_the_half_types(tmp_path: Path) -> None:
    rows = [
        {"dtype": dtype, "temperature": 1.0, "real_logp_error_mean": error}
        for dtype, error in (("bf16", 8e-3), ("fp16", 1e-3))
    ]
    write_json(tmp_path / "probe" / "summary.json", {"by_length": rows})
    assert verdict(read_results(tmp_path))[0].endswith("FP16 by 0.001: 8.0 times less.")


def test_the_gradients_of_a_replay_are_compared(tmp_path: Path) -> None:
    for preset, error in (("fp32_baseline", 0.0), ("bf16_pure", 0.25), ("fp16_pure", 0.03)):
        gradients = {"relative_error": error}
        write_json(tmp_path / "replay" / f"{preset}.json", {"gradients": gradients})
    (sentence,) = verdict(read_results(tmp_path))
    assert "bf16_pure is off by 0.25 of its norm, that of fp16_pure" in sentence
    write_json(tmp_path / "replay" / "fp16_pure.json", {"gradients": {"relative_error": "nan"}})
    [sentence] = verdict(read_results(tmp_path))
    assert "fp16_pure is not finite" in sentence
