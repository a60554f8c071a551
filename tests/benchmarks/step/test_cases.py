from collections import Counter

import pytest
import torch

from benchmarks.step.cases import list_cases, list_comparisons, not_run_reason
from benchmarks.step.results import Case

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
LIMITS = {
    "tiny: ours fp16 ÷ textbook fp16": 0.85,
    "tiny: ours bf16 ÷ textbook bf16": 0.90,
    "tiny: ours fp32 ÷ textbook fp32": 0.87,
    "small: ours bf16 ÷ textbook bf16": 0.97,
    "medium: ours fp32 ÷ textbook fp32": 1.03,
    "tiny: ours fp16 ÷ folded fp16": 1.10,
    "small: ours fp32 ÷ folded fp32": 1.03,
    "tiny: ours bf16 ÷ fabric bf16": 0.80,
    "small: ours fp32 ÷ fabric fp32": 0.92,
    "tiny: ours fp32 ÷ accelerate fp32": 0.65,
    "small: ours bf16 ÷ accelerate bf16": 0.88,
    "small: ours bf16 ÷ ours fp32": 0.75,
    "medium: ours bf16 ÷ ours fp32": 0.40,
}
CUDA_LIMITS = {
    "small: ours fp16 graph ÷ textbook fp32": 0.25,
    "medium: ours fp16 graph ÷ textbook fp32": 0.5,
    "large: ours fp16 ÷ ours fp32, memory": 0.6,
}


def _limits(device: torch.device) -> dict[str, float | None]:
    return {
        f"{c.numerator.size}: {c.numerator} ÷ {c.denominator}"
        + (", memory" if c.quantity == "memory" else ""): c.at_most
        for c in list_comparisons(["tiny", "small", "medium", "large"], device)
    }


def test_every_combination_is_a_case():
    cases = list_cases(["tiny", "small", "medium", "large"])
    assert len(set(cases)) == len(cases) == 4 * 5 * 4 * 2
    assert set(Counter(case.loop for case in cases).values()) == {32}


def test_limits_on_a_cpu():
    limits = _limits(CPU)
    assert {name: limits[name] for name in LIMITS} == LIMITS


def test_limits_on_cuda_are_its_own():
    limits = _limits(CUDA)
    assert {name: limit for name, limit in limits.items() if limit is not None} == CUDA_LIMITS
    assert "small: ours fp16 graph ÷ textbook tf32" in limits


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_comparisons_are_of_cases_that_are_measured(device):
    cases = set(list_cases(["tiny", "large"]))
    for comparison in list_comparisons(["tiny", "large"], device):
        assert {comparison.numerator, comparison.denominator} <= cases


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case(size="tiny", loop="ours", precision="tf32"), "TF32"),
        (Case(size="tiny", loop="ours", precision="fp32", mode="graph"), "graphs"),
        (Case(size="small", loop="ours", precision="fp16"), "FP16"),
        (Case(size="tiny", loop="ours", precision="fp16"), ""),
        (Case(size="large", loop="ours", precision="bf16"), ""),
    ],
)
def test_what_a_cpu_cannot_run_has_a_reason(case, reason):
    said = not_run_reason(case, CPU)
    assert reason in said
    assert bool(reason) == bool(said)
    assert not_run_reason(case, CUDA) == ""
