"""Events as workers send them."""

from collections.abc import Callable

import pytest

from infrastructure.events import PrecisionName
from infrastructure.events.event import BaselineCompared, MismatchMeasured, StepStats
from infrastructure.events.mismatch_report import MismatchReport


@pytest.fixture
def stats() -> Callable[..., StepStats]:
    """Steps in FP16 at a scale far above the floor, unless told otherwise."""

    def make(steps: int = 100, overflow: int = 0, **changes: object) -> StepStats:
        fields = {"step": steps, "applied": steps - overflow, "overflow": overflow}
        fields |= {"fp16": steps, "loss_scale": 1024.0, "precision": "fp16"}
        return StepStats.model_validate({**fields, **changes})

    return make


@pytest.fixture
def compared() -> Callable[..., BaselineCompared]:
    """A comparison that finds nothing, unless told otherwise."""

    def make(**changes: object) -> BaselineCompared:
        fields = {"step": 500, "precision": "fp16", "loss_scale": 1024.0}
        fields |= {"loss": 0.5, "fp32_loss": 0.5, "gradient_error": 0.001, "underflow": 0.01}
        fields |= {"seconds": 0.01, "fp32_seconds": 0.02}
        return BaselineCompared.model_validate({**fields, **changes})

    return make


@pytest.fixture
def mismatched() -> Callable[..., MismatchMeasured]:
    """A mismatch whose size is the sum of what each role's rounding contributes."""
    parts = {"fp32": 0.0, "fp16": 2e-5, "bf16": 2e-3}

    def k3_of(policy: str, rollout: str) -> float:
        return parts[policy] + parts[rollout]

    def make(
        policy: PrecisionName = "fp16", rollout: PrecisionName = "bf16", floor: float = 1e-9
    ) -> MismatchMeasured:
        combinations = [
            {"policy": a, "rollout": b, "k3": floor + k3_of(a, b), "mean_difference": 0.01}
            for a in parts
            for b in parts
        ]
        k3 = floor + k3_of(policy, rollout)
        report = MismatchReport.model_validate(
            {"policy": policy, "rollout": rollout, "tokens": 900, "sequences": 64, "k1": k3}
            | {"k2": k3, "k3": k3, "mean_difference": 0.01, "max_difference": 0.3}
            | {"pearson": 0.99, "chi2_token": 0.01, "chi2_sequence": 0.2, "slope": 1e-3}
            | {"effective_sample_size": 0.9, "sequence_std": 0.2, "combinations": combinations}
        )
        return MismatchMeasured(step=70, round=7, report=report)

    return make
