"""Which pass makes a step overflow, and in which module: whether a lower loss scale can help.

The loss scale multiplies the loss, so it reaches the backward pass alone. A value that leaves the
range of the half type in the forward pass does so at every scale: Micikevicius et al. 2018, "Mixed
Precision Training", section 3.2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from infrastructure.agent_contract.training_job import Batch
from infrastructure.events.event import OverflowCause
from infrastructure.training.diagnostics.anomaly import Origin
from infrastructure.training.diagnostics.repeated_pass import Pass, RepeatedPasses
from infrastructure.training.inputs import preserved_generators, random_state
from infrastructure.training.precision import Precision


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """See `OverflowDiagnosed`, whose fields these become."""

    cause: OverflowCause
    scale: float
    lower_scale_helps: bool = False
    module: str = ""
    operation: str = ""


def diagnose_overflow(
    passes: RepeatedPasses,
    batch: Batch,
    *,
    precision: Precision,
    scales: Sequence[float],
    lowest: float,
) -> Diagnosis:
    """Repeat the step on *batch* to find out why it overflows; reads the device.

    Runs a pass for each of *scales* until one overflows, then two more, and one in which every
    operation is checked, which is slow.

    Args:
        precision: A half type.
        scales: Loss scales at which steps overflowed, lowest first: the lowest at which this batch
            does shows the module with the least room.
        lowest: Lowest loss scale that the trainer may choose.

    Raises:
        RuntimeError: See `RepeatedPasses.run`.
    """
    with preserved_generators(passes.device):
        state = random_state(passes.device)

        def overflows(precision: Precision, scale: float) -> bool:
            return not is_finite(passes.run(batch, precision, scale, state, dropout=True))

        scale = next((candidate for candidate in scales if overflows(precision, candidate)), None)
        if scale is None:
            return Diagnosis(cause="not_reproduced", scale=scales[-1])
        if overflows(Precision.FP32, 1.0):
            origin = passes.trace(batch, Precision.FP32, 1.0, state, dropout=True).first
            return _diagnosis("fp32", origin, scale=scale)
        lower_scale_helps = not overflows(precision, lowest)
        origins = passes.trace(batch, precision, scale, state, dropout=True)
    # An infinite value in the forward pass may be harmless, such as a mask: then the scale helps.
    forward, backward = origins.forward, origins.backward
    if lower_scale_helps or forward is None or (forward.received and backward):
        return _diagnosis("backward", backward, scale=scale, lower_scale_helps=lower_scale_helps)
    return _diagnosis("forward", forward, scale=scale)


def is_finite(result: Pass) -> bool:
    """Whether the loss and the norm of the gradients are finite, as in a step; reads the device."""
    gradients = [gradient for gradient in result.gradients if gradient is not None]
    if not math.isfinite(result.loss) or not gradients:
        return math.isfinite(result.loss)
    norms = torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients])
    return bool(torch.linalg.vector_norm(norms).isfinite())


def _diagnosis(
    cause: OverflowCause, origin: Origin | None, *, scale: float, lower_scale_helps: bool = False
) -> Diagnosis:
    return Diagnosis(
        cause=cause,
        scale=scale,
        lower_scale_helps=lower_scale_helps,
        module=origin.module if origin else "",
        operation=origin.operation if origin else "",
    )
