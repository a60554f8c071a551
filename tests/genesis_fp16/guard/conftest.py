"""Events as workers send them."""

from collections.abc import Callable

import pytest

from infrastructure.events.event import BaselineCompared, StepStats


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
