"""What the guard knows by name: its triggers, and the states an agent can be in."""

from __future__ import annotations

from enum import StrEnum


class Trigger(StrEnum):
    """Why the guard takes an agent to FP32."""

    OVERFLOW_STORM = "overflow_storm"  # too many overflows in one window
    OVERFLOW_SUSTAINED = "overflow_sustained"  # many, over several windows
    SCALE_FLOOR = "scale_floor"  # overflows although the loss scale cannot fall further
    NONFINITE_LOSS = "nonfinite_loss"  # losses in a row that are not finite
    LOSS_DRIFT = "loss_drift"  # the half loss of a frozen batch is off the FP32 one
    METRIC_DRIFT = "metric_drift"  # held-out metric worse than in paired FP32 runs
    SLOWER_THAN_FP32 = "slower_than_fp32"  # on accelerators
    UNDERFLOW = "underflow"  # gradients vanish in half precision


class GuardState(StrEnum):
    """How far the guard trusts an agent with half precision."""

    WATCHING = "watching"  # half precision is allowed
    TRIPPED = "tripped"  # FP32 until the cool-down is over or an operator clears it
    PROBATION = "probation"  # half precision on trial: a relapse doubles the cool-down
