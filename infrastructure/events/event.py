"""Events that a worker reports to its parent, one JSON line each.

Numbers in `StepStats` that are declared `Increment` count since the previous event of the same
attempt: readers add them up. Text that a plugin may have written is `PlainText`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from infrastructure.events.bounds import (
    Amount,
    AnyNumber,
    Count,
    Increment,
    Share,
    StoredCount,
    increments,
)
from infrastructure.events.mismatch_report import MismatchReport, ReferenceReport
from infrastructure.events.plain_text import PlainText
from infrastructure.events.precision_state import (
    ModuleNames,
    PartPrecisions,
    PrecisionName,
    PrecisionState,
    Role,
)
from infrastructure.events.preflight_report import PreflightReport
from infrastructure.events.profile_report import ProfileReport
from infrastructure.events.role_precision import HalfName

SMALLEST_LOSS = 0.01  # of a run's largest FP32 loss: errors are not divided by a smaller loss

Phase = Literal["collect", "train", "evaluate", "publish"]
OverflowCause = Literal["forward", "backward", "fp32", "not_reproduced"]


class BaseEvent(BaseModel):
    """What all events have.

    Attributes:
        time: Unix time in seconds, set by the writer.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")
    time: Amount = 0.0


class Started(BaseEvent):
    """The worker has imported torch and loaded the agent."""

    kind: Literal["started"] = "started"
    pid: StoredCount
    device: PlainText
    torch_version: PlainText


class PhaseStarted(BaseEvent):
    """The run entered *phase*."""

    kind: Literal["phase_started"] = "phase_started"
    phase: Phase


class Progress(BaseEvent):
    """Progress of *phase*; *total* is None if the end is unknown."""

    kind: Literal["progress"] = "progress"
    phase: Phase
    done: Count
    total: Count | None = None
    unit: PlainText = ""
    metrics: Mapping[PlainText, AnyNumber] = {}


class PrecisionChanged(BaseEvent):
    """The worker's acknowledgement: from the step after *step* on, *state* is in force."""

    kind: Literal["precision_changed"] = "precision_changed"
    step: StoredCount
    state: PrecisionState
    loss_scale: Amount


class PartStats(BaseModel):
    """Optimizer steps of one part of a job since the last `StepStats`.

    Attributes:
        name: The part.
        attempted, overflow, nonfinite_loss: Its steps, and those of these outcomes.
        consecutive_nonfinite_losses: Number of its steps in a row, up to now, whose loss was not
            finite.
        loss: Mean finite loss of these steps; None if none was finite.
        grad_norm: Last finite gradient norm, unscaled, before clipping.
        loss_scale: Its loss scale now; 1 outside FP16.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")
    name: PlainText
    attempted: Increment[StoredCount] = 0
    overflow: Increment[StoredCount] = 0
    nonfinite_loss: Increment[StoredCount] = 0
    consecutive_nonfinite_losses: StoredCount = 0
    loss: AnyNumber | None = None
    grad_norm: AnyNumber | None = None
    loss_scale: Amount = 1.0

    def merged_with(self, later: PartStats) -> PartStats:
        """Combine the statistics of one part in two consecutive events; see `StepStats`."""
        changes: dict[str, object] = {
            name: getattr(self, name) + getattr(later, name) for name in increments(PartStats)
        }
        changes["loss"] = _mean_loss(
            (part.loss, part.attempted - part.nonfinite_loss) for part in (self, later)
        )
        changes["grad_norm"] = self.grad_norm if later.grad_norm is None else later.grad_norm
        changes["consecutive_nonfinite_losses"] = max(
            part.consecutive_nonfinite_losses for part in (self, later)
        )
        return later.model_copy(update=changes)


class StepStats(BaseEvent):
    """Optimizer steps since the last such event.

    Attributes:
        step: Steps attempted since the run began, over all attempts.
        total_steps: Steps the run will take; None if unknown.
        epoch: Epochs finished.
        applied, overflow, nonfinite_loss, no_gradient: Steps by outcome; they add up to the
            steps attempted. An overflow is a non-finite unscaled gradient under a finite loss.
        consecutive_nonfinite_losses: Number of steps in a row, up to now, whose loss was not
            finite.
        fp16: Steps attempted in FP16, of any outcome.
        samples: Training samples in these steps.
        seconds: Wall time of these steps.
        loss: Mean finite loss of these steps; None if none was finite.
        grad_norm: Last finite gradient norm, unscaled, before clipping.
        loss_scale: Loss scale in force now; 1 outside FP16.
        precision: Precision in force now.
        cuda_memory_allocated_bytes: Peak since the previous event; None without CUDA.
        parts: Those of each part, if the job has several: then all numbers above are sums over
            the parts, but the loss is their mean, the gradient norm and the non-finite losses in
            a row are the largest, and the loss scale is the lowest.
    """

    kind: Literal["step_stats"] = "step_stats"
    step: StoredCount
    total_steps: Count | None = None
    epoch: Count = 0
    applied: Increment[StoredCount] = 0
    overflow: Increment[StoredCount] = 0
    nonfinite_loss: Increment[StoredCount] = 0
    no_gradient: Increment[StoredCount] = 0
    consecutive_nonfinite_losses: StoredCount = 0
    fp16: Increment[StoredCount] = 0
    samples: Increment[Count] = 0
    seconds: Increment[Amount] = 0.0
    loss: AnyNumber | None = None
    grad_norm: AnyNumber | None = None
    loss_scale: Amount
    precision: PrecisionName
    cuda_memory_allocated_bytes: Count | None = None
    parts: tuple[PartStats, ...] = ()

    @property
    def attempted(self) -> int:
        """Optimizer steps attempted, of any outcome."""
        return self.applied + self.overflow + self.nonfinite_loss + self.no_gradient

    @property
    def attempted_in_half(self) -> int:
        """Optimizer steps attempted, if a half precision is in force now; else 0."""
        return 0 if self.precision == "fp32" else self.attempted

    def parts_with_nonfinite_losses(self, in_a_row: int) -> tuple[str, ...]:
        """Names of the parts with that many non-finite losses *in_a_row*, or more."""
        return tuple(p.name for p in self.parts if p.consecutive_nonfinite_losses >= in_a_row)

    def merged_with(self, later: StepStats) -> StepStats:
        """Combine two consecutive events into one: increments add up, the rest is *later*'s.

        The loss is the mean over all steps with a finite one. Consecutive non-finite losses and
        the memory peak are the larger of both, so that passing a limit in between is not hidden.
        """
        events = (self, later)
        peaks = [e.cuda_memory_allocated_bytes for e in events]
        changes: dict[str, object] = {
            **{name: getattr(self, name) + getattr(later, name) for name in _INCREMENTS},
            "consecutive_nonfinite_losses": max(e.consecutive_nonfinite_losses for e in events),
            "loss": _mean_loss((e.loss, e.attempted - e.nonfinite_loss) for e in events),
            "grad_norm": self.grad_norm if later.grad_norm is None else later.grad_norm,
            "cuda_memory_allocated_bytes": max((p for p in peaks if p is not None), default=None),
            "parts": _merged_parts(self.parts, later.parts),
        }
        return later.model_copy(update=changes)


_INCREMENTS = increments(StepStats)


def _mean_loss(losses: Iterable[tuple[float | None, int]]) -> float | None:
    """Mean of losses, each with the number of steps that it is the mean of; None without any."""
    known = [(loss, count) for loss, count in losses if loss is not None]
    steps = sum(count for _, count in known)
    if not steps:
        return known[-1][0] if known else None
    return sum(loss * count for loss, count in known) / steps


def _merged_parts(
    earlier: tuple[PartStats, ...], later: tuple[PartStats, ...]
) -> tuple[PartStats, ...]:
    before = {part.name: part for part in earlier}
    return tuple(
        before[part.name].merged_with(part) if part.name in before else part for part in later
    )


@dataclass(slots=True)
class StepTotals:
    """Sums over the `StepStats` of a run.

    Attributes:
        steps: Steps attempted since the run began, as of the last event.
        half_steps: Steps attempted in half precision.
        fp16_steps: Steps attempted in FP16.
        overflows, nonfinite_losses: Steps with that outcome.
        loss: Last finite loss; None before the first.
        part_overflows: Overflows of each part of a job that has several, by name.
    """

    steps: int = 0
    half_steps: int = 0
    fp16_steps: int = 0
    overflows: int = 0
    nonfinite_losses: int = 0
    loss: float | None = None
    part_overflows: dict[str, int] = field(default_factory=dict)

    def add(self, stats: StepStats) -> None:
        """Count *stats*; call it once for each event, in order."""
        self.steps = stats.step
        self.half_steps += stats.attempted_in_half
        self.fp16_steps += stats.fp16
        self.overflows += stats.overflow
        self.nonfinite_losses += stats.nonfinite_loss
        self.loss = self.loss if stats.loss is None else stats.loss
        before = self.part_overflows
        self.part_overflows = {p.name: before.get(p.name, 0) + p.overflow for p in stats.parts}


class BaselineCompared(BaseEvent):
    """One frozen batch, computed in the half precision in force and again in FP32.

    Weights and random numbers are the same, so the difference is the rounding of this one step
    and not the drift of the training. Measured only while a half precision is in force.

    Attributes:
        step: Steps attempted since the run began, over all attempts.
        precision: Precision in force now: the half type compared.
        loss_scale: Loss scale in force now; 1 outside FP16.
        loss: Loss in *precision*; may be NaN or infinite.
        fp32_loss: Loss in FP32. If it is NaN or infinite too, precision is not the cause.
        largest_fp32_loss: Largest FP32 loss of the batch so far, in all attempts of the run.
        gradient_error: Length of the difference between the unscaled gradient and FP32's, divided
            by the length of FP32's. Infinite if only FP32's is finite. It and the fields below
            are None if gradients were not compared, or FP32's is zero or not finite.
        gradient_cosine: Cosine of the two gradients; None also if the half one is not finite.
        underflow: Fraction of FP32's nonzero gradient elements that are zero in *precision*.
        blocked: Fraction of them that belong to parameters whose gradient is zero in all elements.
        nonfinite_module: Operation and module, forward before backward, that first computed a
            value that is not finite in *precision*; empty if none did.
        worst_module: Module that contributes most to a finite *gradient_error*.
        seconds, fp32_seconds: Time of the forward and backward pass in each precision, including
            the wait for the device.
        comparable: False if the model drew random numbers in half precision: FP32 draws others,
            so the differences prove nothing.
    """

    kind: Literal["baseline_compared"] = "baseline_compared"
    step: StoredCount
    precision: PrecisionName
    loss_scale: Amount
    loss: AnyNumber
    fp32_loss: AnyNumber
    largest_fp32_loss: AnyNumber = 0.0
    gradient_error: AnyNumber | None = None
    gradient_cosine: AnyNumber | None = None
    underflow: AnyNumber | None = None
    blocked: AnyNumber | None = None
    nonfinite_module: PlainText = ""
    worst_module: PlainText = ""
    seconds: Amount | None = None
    fp32_seconds: Amount | None = None
    comparable: bool = True

    @property
    def loss_error(self) -> float:
        """Difference of the loss from FP32's as a share of `loss_size`.

        NaN if FP32's loss is not finite or the two are not comparable.
        """
        if not (math.isfinite(self.fp32_loss) and self.comparable):
            return math.nan
        if not math.isfinite(self.loss):
            return math.inf
        return abs(self.loss - self.fp32_loss) / max(self.loss_size, sys.float_info.min)

    @property
    def loss_size(self) -> float:
        """Divisor for an error of the loss: FP32's loss, at least `SMALLEST_LOSS` of the largest.

        A loss that has become tiny consists mostly of the rounding of larger numbers, so its
        relative error means nothing.
        """
        return max(abs(self.fp32_loss), SMALLEST_LOSS * self.largest_fp32_loss)


class OverflowDiagnosed(BaseEvent):
    """A step whose gradient or loss was not finite in half precision was repeated.

    Attributes:
        step: Steps attempted since the run began, over all attempts.
        precision: The half type.
        loss_scale: Loss scale at which the batch was repeated; 1 outside FP16.
        overflows: Steps that overflowed, or whose loss was not finite, since the last diagnosis.
        cause: ``forward``: a value leaves the half type's range in the forward pass, at every loss
            scale. ``backward``: only a gradient does. ``fp32``: FP32 is not finite either, so
            precision is not the cause. ``not_reproduced``: this batch does not overflow.
        lower_scale_helps: Whether the batch is finite at the lowest loss scale.
        module, operation: Where the first value that is not finite was computed; empty if unknown.
        seconds: Time that the diagnosis took.
    """

    kind: Literal["overflow_diagnosed"] = "overflow_diagnosed"
    step: StoredCount
    precision: PrecisionName
    loss_scale: Amount
    overflows: StoredCount
    cause: OverflowCause
    lower_scale_helps: bool = False
    module: PlainText = ""
    operation: PlainText = ""
    seconds: Amount


class LostUpdatesMeasured(BaseEvent):
    """One optimizer step was repeated to count what half precision and rounding lose.

    Attributes:
        step: Steps attempted since the run began, over all attempts.
        precision: Precision of the step.
        loss_scale: Loss scale of the step; 1 outside FP16.
        zero: Share of the gradient's elements that are not zero in FP32 and are zero in
            *precision*. It and *subnormal* are None in FP32, or if the gradients cannot be
            compared.
        subnormal: Share of those elements that are subnormal in the half type and not in FP32.
        underflow_module: Module with most of both; empty if there are none.
        stagnation: Share of the weights whose gradient is not zero which the step left unchanged;
            None if the step was skipped.
        stagnation_module: Module with most of them; empty if there are none.
        seconds: Time that the measurement took.
    """

    kind: Literal["lost_updates_measured"] = "lost_updates_measured"
    step: StoredCount
    precision: PrecisionName
    loss_scale: Amount
    zero: Share | None = None
    subnormal: Share | None = None
    underflow_module: PlainText = ""
    stagnation: Share | None = None
    stagnation_module: PlainText = ""
    seconds: Amount


REPLAY_TOLERANCE = 8.0
"""Multiple of the noise floor up to which a replay agrees with FP32."""


RungCause = Literal[
    "modules",
    "parts",
    "roles",
    "half_type",
    "scale",
    "data",
    "optimisation",
    "unexplained",
    "unfinished",
]


class RungSearched(BaseEvent):
    """A worker has searched, after a trip, for the modules that must be in FP32.

    Attributes:
        step: Step whose weights and last batches were replayed.
        modules: Modules in FP32 with which a replay in the half type agrees with FP32; empty if
            there are none or FP32 must stay.
        parts: Parts of the job in FP32, or in the other half type, with which a replay agrees with
            FP32, where no few modules suffice; empty if there are none.
        half_type: Other half type with which a replay agrees with FP32 without *modules*, where
            none suffice or they would be most of the model; None if there is none.
        roles: Precisions of roles of a policy job: of all copies of its weights, with that half
            type, or of the reference alone, if that is to blame; empty for a job without roles.
        cause: What is to blame: modules; parts of the job; a role of it; the half type, where the
            other one suffices; the loss scale, where half precision agrees with FP32 at another
            one, to which it moves by itself; the data or the optimisation, which FP32 shows too;
            unexplained if half precision agrees with FP32 on these batches, or if modules are not
            to blame; unfinished if the search could not be made or exceeded its time.
        reason: What was found, in one sentence.
        half_deviation: Deviation from FP32 in half precision everywhere, a multiple of the noise
            floor; None if it was not measured.
        deviation: The same with *modules* in FP32, with *parts*, or with *half_type*.
        fp32_share: Share of the forward pass's floating-point operations in FP32 with these.
        replays: Number of replays.
        seconds: Duration of the search, during which the training went on in FP32.
    """

    kind: Literal["rung_searched"] = "rung_searched"
    step: StoredCount
    modules: ModuleNames = ()
    parts: PartPrecisions = Field(default_factory=dict)
    half_type: HalfName | None = None
    roles: Mapping[Role, PrecisionName] = Field(default_factory=dict)
    cause: RungCause
    reason: PlainText
    half_deviation: AnyNumber | None = None
    deviation: AnyNumber | None = None
    fp32_share: Share | None = None
    replays: Count = 0
    seconds: Amount = 0.0

    @property
    def agrees(self) -> bool:
        """Whether half precision everywhere agrees with FP32 on these batches."""
        return self.half_deviation is not None and self.half_deviation <= REPLAY_TOLERANCE

    @property
    def proposal(self) -> str:
        """What to change in the agent's code, with its measured cost and gain; empty if nothing."""
        kept = (*self.modules, *(f"part:{p}" for p, name in self.parts.items() if name == "fp32"))
        if self.cause == "roles" or any(name != "fp32" for name in self.parts.values()):
            return self.reason
        if kept:
            share = "an unknown share" if self.fp32_share is None else f"{self.fp32_share:.1%}"
            return (
                f"keep_fp32={list(kept)}: {share} of the forward pass's operations in FP32 "
                f"instead of all; gradients off by {self.deviation or 0:.1f} times the noise floor "
                f"instead of {self.half_deviation or 0:.1f}"
            )
        if self.half_type is not None:
            return f"{self.half_type.upper()} in place of the other half type: {self.reason}"
        return self.reason if self.cause == "scale" else ""


class MismatchMeasured(BaseEvent):
    """Trainer and rollout were compared on tokens that the rollout has just sampled.

    Attributes:
        step: Steps attempted since the run began, over all attempts.
        round: Round of the on-policy job, from 0.
        reference: Rounding of the reference on the same tokens; None without one.
    """

    kind: Literal["mismatch_measured"] = "mismatch_measured"
    step: StoredCount
    round: StoredCount
    report: MismatchReport
    reference: ReferenceReport | None = None


class PreflightDone(BaseEvent):
    """The job was measured on a copy of its model; the training itself is unchanged."""

    kind: Literal["preflight_done"] = "preflight_done"
    report: PreflightReport


class ProfileDone(BaseEvent):
    """The agent's run was profiled in a folder of its own; nothing was published."""

    kind: Literal["profile_done"] = "profile_done"
    report: ProfileReport


class CheckpointSaved(BaseEvent):
    """A checkpoint is on disk, complete and hashed."""

    kind: Literal["checkpoint_saved"] = "checkpoint_saved"
    step: StoredCount
    path: PlainText
    size_bytes: Count
    seconds: Amount


class Resumed(BaseEvent):
    """Training continues from a checkpoint."""

    kind: Literal["resumed"] = "resumed"
    step: StoredCount
    path: PlainText


class Evaluated(BaseEvent):
    """Held-out metrics.

    Attributes:
        higher_is_better: Direction of the primary metric; None in files of earlier releases.
        fp32_baseline_loss: Loss of one frozen training batch, computed in FP32 with the weights
            of this moment; None if not measured.
        began_at: Unix time in seconds at which the evaluation began; None in files of earlier
            releases.
        seconds: How long it took.
    """

    kind: Literal["evaluated"] = "evaluated"
    epoch: Count
    metrics: Mapping[PlainText, AnyNumber]
    primary: PlainText
    higher_is_better: bool | None = None
    fp32_baseline_loss: AnyNumber | None = None
    began_at: Amount | None = None
    seconds: Amount = 0.0


class Published(BaseEvent):
    """The agent's decision on the trained model."""

    kind: Literal["published"] = "published"
    published: bool
    reason: PlainText
    metrics: Mapping[PlainText, AnyNumber] = {}


NOT_RAISED = "modules_not_raised"
"""Event of a notice that the job has not all of `modules`, or only them; ``error`` says which."""


class Notice(BaseEvent):
    """Something an operator should read: a damaged record, a skipped field, a fallback."""

    kind: Literal["notice"] = "notice"
    level: Literal["info", "warning"] = "info"
    event: PlainText
    fields: Mapping[PlainText, PlainText] = {}

    @classmethod
    def warning(cls, event: str, error: object, **fields: str) -> Notice:
        """A warning about *error*, which becomes the first of the fields."""
        return cls(level="warning", event=event, fields={"error": str(error), **fields})


class Finished(BaseEvent):
    """The last event of an attempt; missing if its process was killed.

    Attributes:
        outcome: ``done``; ``no_data`` (nothing to train on); ``stopped`` (checkpointed, wants
            requeue); ``disk_full`` (wants requeue); ``failed``; ``misconfigured`` (never retry).
        error: One paragraph with what failed, where, and the remedy; empty if nothing did.
    """

    kind: Literal["finished"] = "finished"
    outcome: Literal["done", "no_data", "stopped", "disk_full", "failed", "misconfigured"]
    error: PlainText = ""


Event = Annotated[
    Started
    | PhaseStarted
    | Progress
    | PrecisionChanged
    | StepStats
    | BaselineCompared
    | OverflowDiagnosed
    | LostUpdatesMeasured
    | RungSearched
    | MismatchMeasured
    | PreflightDone
    | ProfileDone
    | CheckpointSaved
    | Resumed
    | Evaluated
    | Published
    | Notice
    | Finished,
    Field(discriminator="kind"),
]

EVENT_ADAPTER: TypeAdapter[Event] = TypeAdapter(Event)
