"""The plan of a training: steps, batch size, learning rate and evaluations for so many rows.

`WorldModel.fit`, `WorldModel.train` and `WorldModelAgent` train by the same plan. It bounds the
training: the loss on the calibration groups ends it earlier, and decides which evaluation's
weights are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from infrastructure.world_model.fitting.training_job import TrainingPlan

_LEARNING_RATES = (3e-3, 1e-2)
_RATE_PER_ROW = 1e-2 / 3000
_BATCHES_PER_PASS = 24  # at least, of few rows: larger batches would leave too few steps
_SMALLEST_BATCH = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanBounds:
    """The most that a training may take.

    Attributes:
        steps: Maximum number of optimizer steps; None for no bound.
        passes: Maximum number of passes over the training groups.
        epochs: Maximum number of evaluations; the steps are spread over them evenly.
        patience: Evaluations in a row without a lower loss on the calibration groups that end the
            training; None for none.
        batch_size: Maximum number of rows per step.
    """

    steps: int | None = 5000
    passes: int = 200
    epochs: int = 20
    patience: int | None = 4
    batch_size: int = 256


def plan_training(
    rows: int, bounds: PlanBounds | None = None, *, seed: int = 0, device: str = "cpu"
) -> TrainingPlan:
    """Plan a training on *rows* training rows.

    Few rows get smaller batches, so that a pass has 24 steps; but none below 64 rows. They get
    a lower learning rate, too: a higher one memorises them between two evaluations.

    Args:
        bounds: Bounds of the training; None for the defaults.
        seed: Seed that shuffles the rows.
        device: Device that the job trains on.
    """
    bounds = bounds or PlanBounds()
    batch_size = min(bounds.batch_size, rows, max(_SMALLEST_BATCH, rows // _BATCHES_PER_PASS))
    steps = bounds.passes * rows // batch_size
    if bounds.steps is not None:
        steps = min(steps, bounds.steps)
    lowest, highest = _LEARNING_RATES
    return TrainingPlan(
        epochs=bounds.epochs,
        steps_per_epoch=max(1, steps // bounds.epochs),
        batch_size=batch_size,
        learning_rate=min(highest, max(lowest, _RATE_PER_ROW * rows)),
        seed=seed,
        device=device,
        patience=bounds.patience,
    )
