"""How the statistics of steps add up."""

import pytest

from infrastructure.events.event import PartStats, StepStats, StepTotals


def steps(**changes: object) -> StepStats:
    fields = {"step": 10, "applied": 10, "fp16": 10, "loss_scale": 4.0, "precision": "fp16"}
    return StepStats.model_validate({**fields, **changes})


def test_merged_windows_add_increments_and_keep_the_latest_state() -> None:
    first = steps(applied=6, overflow=2, nonfinite_loss=2, loss=1.0, grad_norm=3.0, samples=7)
    first = first.model_copy(
        update={"cuda_memory_allocated_bytes": 9, "consecutive_nonfinite_losses": 2}
    )
    later = steps(step=14, applied=4, fp16=4, loss=4.0, loss_scale=2.0, epoch=3)
    merged = first.merged_with(later)
    assert (merged.step, merged.applied, merged.overflow, merged.nonfinite_loss) == (14, 10, 2, 2)
    assert (merged.fp16, merged.samples, merged.loss_scale, merged.epoch) == (14, 7, 2.0, 3)
    assert merged.loss == pytest.approx((8 * 1.0 + 4 * 4.0) / 12)
    assert merged.grad_norm == 3.0, "the last known one"
    assert merged.consecutive_nonfinite_losses == 2, "the largest"
    assert merged.cuda_memory_allocated_bytes == 9, "the peak"


def test_a_window_without_a_finite_loss_has_no_weight() -> None:
    nothing = steps(applied=0, nonfinite_loss=3)
    assert nothing.merged_with(nothing).loss is None
    assert nothing.merged_with(steps(loss=2.0)).loss == 2.0
    assert steps(loss=2.0).merged_with(nothing).loss == 2.0


def test_totals_of_a_run() -> None:
    totals = StepTotals()
    totals.add(steps(overflow=1, loss=0.5))
    totals.add(steps(step=20, fp16=0, precision="bf16", nonfinite_loss=1))
    totals.add(steps(step=30, fp16=0, precision="fp32"))
    assert totals == StepTotals(
        steps=30, half_steps=22, fp16_steps=10, overflows=1, nonfinite_losses=1, loss=0.5
    )


def test_merged_windows_keep_the_most_losses_in_a_row_of_each_part() -> None:
    critic = PartStats(name="critic", consecutive_nonfinite_losses=25)
    actor = PartStats(name="actor", consecutive_nonfinite_losses=3)
    merged = steps(parts=(critic, actor)).merged_with(
        steps(parts=(PartStats(name="critic"), actor))
    )
    assert merged.parts_with_nonfinite_losses(25) == ("critic",)
    assert merged.parts_with_nonfinite_losses(3) == ("critic", "actor")
    assert steps().parts_with_nonfinite_losses(1) == ()


def test_totals_of_parts() -> None:
    totals = StepTotals()
    critic, actor = PartStats(name="critic", overflow=2), PartStats(name="actor", overflow=1)
    totals.add(steps(parts=(critic, actor)))
    totals.add(steps(parts=(critic, actor)))
    assert totals.part_overflows == {"critic": 4, "actor": 2}
