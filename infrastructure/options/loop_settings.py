"""Options of the training loop that an operator sets: the only declaration of each."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from infrastructure.options.setting_types import Count, CountOrZero, Hot, Seconds


class LoopSettings(BaseModel):
    """Options of the training loop: name, bounds, default and meaning of each.

    `Settings` inherits them as ``GENESIS_...``, a `RunSpec` carries them, and the loop reads them
    from `LoopOptions`, which inherits them too.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    stats_interval_steps: Count = 20
    """Steps between two reads of the device for the metrics."""
    baseline_interval_steps: CountOrZero = 500
    """Steps between two comparisons of half precision with FP32 on one frozen batch; 0: none."""
    telemetry_interval_steps: CountOrZero = 500
    """Steps between two samples of underflow and stagnation, at most 1 % of the time; 0: none."""
    checkpoint_interval_seconds: Seconds = 15.0
    """Longest time between two checkpoints, in seconds."""
    keep_checkpoints: Annotated[int, Field(ge=1, le=1000)] = 2
    """Number of checkpoints kept per run."""
    profile_steps: Hot[Annotated[int, Field(ge=0, le=1000)]] = 0
    """Number of steps to profile in each attempt; traces are in the run's folder; 0: none."""
