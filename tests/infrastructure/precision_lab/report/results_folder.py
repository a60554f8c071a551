"""Folders of results, written by the library's own writers, for the tests of the report."""

from __future__ import annotations

import json
import math
from pathlib import Path

from infrastructure.precision_lab.results import CellFolder, CellSummary, write_manifest


def write_cell(
    output: Path,
    preset: str,
    seed: int,
    *,
    category: str = "completed",
    reward: float = 0.8,
    kl: float = 1e-2,
    updates: int = 20,
    reason: str = "",
) -> CellFolder:
    """One cell of a sweep with every metric that the report shows."""
    run = CellFolder.of(output, preset, seed)
    run.begin({"preset": preset, "seed": seed})
    for step in range(1, updates + 1):
        run.append(
            {
                "step": step,
                "task_reward_mean": reward * step / updates,
                "kl_mc_mean": kl,
                "kl_penalty_mean": kl * step / updates,
                "exact_kl_penalty_mean": 1.01 * kl * step / updates,
                "log_ratio_near_zero_frac": 0.25,
                "reward_resolution_median": 2**-8,
                "value_quant_step_median": 2**-7,
                "value_stagnation_rate": 0.1,
                "accum_err_final": 0.02,
                "mismatch_k3": 1e-5,
                "ratio_unique_in_range": 40,
                "clip_fraction": 0.1,
                "grad_norm": math.inf if step == 3 else 150.0 if step == 4 else 1.5,
                "skipped": step == 3,
                "update_stagnation_rate": None if step == 3 else 0.5,
            }
        )
    run.finish(
        CellSummary(
            preset=preset,
            seed=seed,
            category=category,
            reason=reason,
            updates=updates,
            planned_updates=20,
            seconds=3.0,
            cpu_seconds=2.0,
            initial_weights="0" * 64,
            environment={"device": "cpu", "torch": "2.13", "versions": {"numpy": "2"}},
        )
    )
    return run


def write_sweep(output: Path) -> None:
    """Two seeds of a preset that fails in one, of one that learns less, and of FP32."""
    write_manifest(output, {"seeds": [0, 1]})
    for seed in (0, 1):
        write_cell(output, "fp32_baseline", seed, reward=0.9 + seed / 100)
        write_cell(output, "bf16_fp32_kl", seed, reward=0.5)
    write_cell(output, "bf16_pure", 0, category="nan_loss", updates=7)
    write_cell(output, "bf16_pure", 1)


def write_json(path: Path, value: object) -> None:
    """*value* at *path*, whose folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
