"""What a caller chooses for a training, and what it gets back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from infrastructure.agent_contract import Evaluation
from infrastructure.options import LoopSettings
from infrastructure.options.setting_types import CountOrZero
from infrastructure.training.distributed import Parallel


class LoopOptions(LoopSettings):
    """Options of one training: the operator's, its seed, and how its ranks work together.

    A caller that names no interval gets no measurements, and may turn checkpoints between epochs
    off with an infinite one; an operator's settings are bounded and measure by default.
    See `StepProfile`, `Fp32Shadow` and `TelemetryObserver` for what the intervals and
    *profile_steps* turn on; the traces of a profile are in ``profile/`` beside the checkpoints.
    """

    seed: int
    """Seed of Python's and torch's global random generators; rank N uses *seed* + N."""
    parallel: Parallel = "ddp"
    """How several ranks share the model; see `distribute`."""
    baseline_interval_steps: CountOrZero = 0
    telemetry_interval_steps: CountOrZero = 0
    checkpoint_interval_seconds: Annotated[float, Field(ge=0)] = 15.0


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingResult:
    """Result of a training.

    Attributes:
        outcome: ``done``, or ``stopped``, with a checkpoint written unless a notice says otherwise.
        evaluation: Evaluation of the model as it is left, after the last epoch or, if it is kept,
            the best one; None if training stopped before an epoch ended.
        steps: Optimizer steps in all attempts of the run, including skipped steps.
        epochs: Number of finished epochs; fewer than the job's if its `patience` ended the
            training.
        stats: Statistics of the trainer at the end; see `FP16Trainer.get_stats`.
    """

    outcome: Literal["done", "stopped"]
    evaluation: Evaluation | None
    steps: int
    epochs: int
    stats: Mapping[str, float | int | bool | str]
