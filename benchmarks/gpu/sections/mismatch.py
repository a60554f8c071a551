"""The mismatch of rollout and trainer, as ``benchmarks.policy mismatch`` measures it."""

from __future__ import annotations

from benchmarks.gpu.section import Task
from benchmarks.measuring.table import format_table
from benchmarks.policy.mismatch_table import MEASURES, measure_pairs
from benchmarks.policy.scores import Kept
from benchmarks.policy.subjects import pretrain_small

# A factor of 2 around 64 and 8: three bits of mantissa, squared in a divergence.
_BOUNDS = {"k3": (32.0, 128.0), "mean_difference": (4.0, 16.0)}


def run(task: Task) -> None:
    """Pretrain the small policy and compare seven pairs of precisions."""
    prompts, steps, tokens = (4, 5, 4) if task.quick else (24, 300, 64)
    subject = pretrain_small(prompts=prompts, steps=steps, seed=0, device=task.device)
    pairs, ratios = measure_pairs(
        subject,
        Kept(task.folder / "kept", {}),
        new_tokens=tokens,
        group=2,
        seed=0,
        resamples=20 if task.quick else 500,
    )
    rows = [
        {
            "rollout": pair.rollout,
            "trainer": pair.trainer,
            "tokens": str(pair.tokens),
            **{name: str(pair.measures[name]) for name in MEASURES},
        }
        for pair in pairs
    ]
    task.findings.show(format_table(rows, tuple(rows[0])))
    task.findings.decide(
        "mismatch-ratio",
        holds=all(
            low <= ratios[name].high and ratios[name].low <= high
            for name, (low, high) in _BOUNDS.items()
        ),
        measured="; ".join(f"{name}: {ratios[name]}" for name in _BOUNDS),
        **{name: ratios[name].figure for name in _BOUNDS},
    )
    k3 = {f"{pair.rollout}/{pair.trainer}": pair.measures["k3"].figure for pair in pairs}
    task.findings.decide(
        "mismatch-order",
        holds=min(value for name, value in k3.items() if "bf16" in name)
        > max(value for name, value in k3.items() if "bf16" not in name),
        measured=", ".join(f"{name} {value:.1e}" for name, value in k3.items()),
        **k3,
    )
