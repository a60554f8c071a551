"""What a caller chooses for a training, and what it gets back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from infrastructure.agent_contract import Evaluation
from infrastructure.training.distributed import Parallel


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopOptions:
    """Options of the training loop.

    Attributes:
        seed: Seed of Python's and torch's global random generators; rank N uses *seed* + N.
        stats_interval_steps: Steps between two reads of the device.
        checkpoint_interval_seconds: Longest time between two checkpoints.
        profile_steps: Number of steps to profile at the beginning; 0 for none. The traces are
            written to ``profile/`` beside the folder of the checkpoints. See `StepProfile`.
        parallel: How several ranks share the model; see `distribute`.
        baseline_interval_steps: Steps between two comparisons of a half precision with FP32; 0 for
            none; see `Fp32Shadow`.
        telemetry_interval_steps: Steps between two measurements of lost updates; 0 for none, and
            for no diagnosis of overflows; see `TelemetryObserver`.
    """

    seed: int
    stats_interval_steps: int = 20
    checkpoint_interval_seconds: float = 15.0
    keep_checkpoints: int = 2
    profile_steps: int = 0
    parallel: Parallel = "ddp"
    baseline_interval_steps: int = 0
    telemetry_interval_steps: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingResult:
    """Result of a training.

    Attributes:
        outcome: ``done``, or ``stopped``, with a checkpoint written unless a notice says otherwise.
        evaluation: Evaluation of the last epoch; None if training stopped before an epoch ended.
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
