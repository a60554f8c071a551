"""Results of profiling an agent's run: cost by phase, cost of a step; part of an event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict

from infrastructure.events.bounds import Amount, AnyNumber, Count
from infrastructure.events.plain_text import PlainText
from infrastructure.events.precision_state import PrecisionName, PrecisionState

STEP_PHASES = ("batches", "forward", "backward", "optimizer", "loss scale", "statistics", "loop")
"""Phases that every optimizer step goes through."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")


class PhaseCost(_Part):
    """Cost of one phase of a run, without that of the phases inside it.

    Attributes:
        phase: Its name.
        measured: How many times it was measured.
        wall_seconds, cpu_seconds: Of all these times together. CPU seconds include those of child
            processes that have ended.
        whole: How many times a whole run goes through it; None if that is unknown.
        at_most: Whether *whole* is an upper limit.
        peak_bytes: Largest resident memory of the process until the phase ended; None within steps.
        peak_cuda_bytes: Largest memory allocated on the device until then; None without CUDA.
    """

    phase: PlainText
    measured: Count
    wall_seconds: Amount
    cpu_seconds: Amount
    whole: AnyNumber | None
    at_most: bool = False
    peak_bytes: Count | None = None
    peak_cuda_bytes: Count | None = None

    @property
    def factor(self) -> float | None:
        """Whole run divided by what was measured; None if it is unknown."""
        return None if self.whole is None else self.whole / max(1, self.measured)

    @property
    def run_wall_seconds(self) -> float | None:
        """Wall seconds in a whole run."""
        return None if self.factor is None else self.factor * self.wall_seconds

    @property
    def run_cpu_seconds(self) -> float | None:
        """CPU seconds in a whole run."""
        return None if self.factor is None else self.factor * self.cpu_seconds


class OperatorCost(_Part):
    """One operator of torch in a step, as its profiler sees it.

    Attributes:
        calls: Calls in a step.
        seconds: In a step, without the operators it calls: of the device's kernels on CUDA, else of
            the host.
        share: *seconds* divided by those of all operators.
    """

    name: PlainText
    calls: Amount
    seconds: Amount
    share: AnyNumber


class StepCost(_Part):
    """A training step in one precision, on a copy of the model, without statistics and batches.

    Attributes:
        seconds: Median of a whole optimizer step; CPU seconds on one thread of a CPU, else wall.
        ratio: Its time divided by FP32's, measured in turn; None for FP32.
        ratio_error: Standard error of *ratio*.
        fixed_share: Share of forward and backward that remains with two rows in a batch instead of
            all: dispatch and launches, not arithmetic. None if the job cannot be cut to two rows.
        busy_share: Share of the step in which the device computes; None without CUDA.
        cast_share: Share of the operators' time that goes into casts between types.
        product_flops: Floating-point operations of matrix products and convolutions in a step, by
            the type they are computed in.
        operators: The most expensive ones, first the most expensive.
    """

    precision: PrecisionName
    seconds: Amount
    ratio: AnyNumber | None = None
    ratio_error: AnyNumber | None = None
    fixed_share: AnyNumber | None = None
    busy_share: AnyNumber | None = None
    cast_share: AnyNumber = 0.0
    product_flops: Mapping[PlainText, AnyNumber] = {}
    operators: tuple[OperatorCost, ...] = ()


class ProfileReport(_Part):
    """Where the time of an agent's run goes.

    Attributes:
        measured_at: Unix time in seconds.
        device_name: Name that the device reports.
        threads: Torch's threads.
        precision: Precision in force while it was measured, and why.
        transitions: Recorded transitions that the job was built from.
        collected: Those of them that were collected while measuring.
        rows: Rows of the first batch.
        parameters: Numbers that the model trains.
        measured_steps: Optimizer steps taken.
        total_steps: Optimizer steps of a whole run; None if unknown.
        epochs: Evaluations of a whole run.
        bounds: Where the bounds of a run are set: the file of a configured agent, the class of a
            `WorldModelAgent`, or the job that another agent builds.
        prewarmed: Whether runs begin in a worker that waits with torch imported. The phase
            ``start`` is that of a cold worker all the same.
        phases: In the order in which a run goes through them.
        steps: The step in FP32 first; in the precision in force; and in the half type that the
            device could compute.
        remarks: What was not measured, and why.
    """

    measured_at: Amount
    device: PlainText
    device_name: PlainText
    torch_version: PlainText
    threads: Count
    precision: PrecisionState
    transitions: Count
    collected: Count
    rows: Count
    parameters: Count
    measured_steps: Count
    total_steps: Count | None
    epochs: Count
    bounds: Literal["file", "class", "job"] = "job"
    prewarmed: bool = False
    phases: tuple[PhaseCost, ...]
    steps: tuple[StepCost, ...]
    remarks: tuple[PlainText, ...] = ()

    @property
    def run_wall_seconds(self) -> float:
        """Wall seconds of a whole run, as far as they are known."""
        return sum(phase.run_wall_seconds or 0.0 for phase in self.phases)

    @property
    def run_cpu_seconds(self) -> float:
        """CPU seconds of a whole run, as far as they are known."""
        return sum(phase.run_cpu_seconds or 0.0 for phase in self.phases)

    def share(self, *phases: str) -> float:
        """Share of *phases* in a whole run's wall time."""
        chosen = (phase.run_wall_seconds or 0.0 for phase in self.phases if phase.phase in phases)
        whole = self.run_wall_seconds
        return sum(chosen) / whole if whole > 0.0 else 0.0

    def step_in(self, precision: PrecisionName) -> StepCost | None:
        """The step in *precision*; None if it was not measured."""
        return next((step for step in self.steps if step.precision == precision), None)

    def phase(self, name: str) -> PhaseCost | None:
        """The phase of this name; None if the run has none."""
        return next((phase for phase in self.phases if phase.phase == name), None)
