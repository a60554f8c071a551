"""What a search for the smallest rung is asked."""

from __future__ import annotations

from dataclasses import dataclass, field

from infrastructure.events.role_precision import HalfName
from infrastructure.precision_lab.rung.losses import LossHistory


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedPart:
    """A part of a job whose steps failed.

    Attributes:
        loss_scale, history: As in `RungRequest`, of this part.
    """

    name: str
    loss_scale: float | None = None
    history: LossHistory = field(default_factory=LossHistory)


@dataclass(frozen=True, kw_only=True, slots=True)
class RungRequest:
    """What a search is to find, and what the training knew before it.

    Attributes:
        half: Half type to descend to.
        step: Step of the weights.
        suspects: Names of modules that telemetry has seen to overflow or underflow.
        history: Losses of the training, to tell one that has diverged.
        loss_scale: Loss scale of the last steps in FP16, None if there were none; higher ones than
            65536 are tried, too.
        other_half: Half type to try where no few modules suffice; None where somebody has chosen
            *half*, or the device lacks the other one.
        raises_modules: Whether modules may be raised, not only the half type changed. A policy's
            may not: its rollout would round differently.
        generated: Whether the batches may have been generated in half precision, so that what is
            not finite in them is not the data's fault.
        reference: Types of a policy job's reference in half precision, ``store/compute/out``; empty
            if there is none, or its weights are not at hand.
        part: Part of the job that is searched; empty for a job without parts.
        failed: Parts of the job that are to be searched, one after another.
        seconds: Time after which the search gives up.
    """

    half: HalfName
    step: int
    suspects: tuple[str, ...] = ()
    history: LossHistory = field(default_factory=LossHistory)
    loss_scale: float | None = None
    other_half: HalfName | None = None
    raises_modules: bool = True
    generated: bool = False
    reference: str = ""
    part: str = ""
    failed: tuple[FailedPart, ...] = ()
    seconds: float = float("inf")
