import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrastructure.world_model.fitting import PlanBounds, plan_training
from infrastructure.world_model_agent import WorldModelAgent


def test_the_bounds_of_an_agent_are_the_defaults_of_the_library():
    agent = WorldModelAgent
    assert PlanBounds() == PlanBounds(
        steps=agent.training_steps,
        passes=agent.training_passes,
        epochs=agent.epochs,
        patience=agent.patience,
        batch_size=agent.batch_size,
    )


@given(st.integers(1, 300_000))
def test_a_plan_keeps_its_bounds(rows):
    plan, bounds = plan_training(rows), PlanBounds()
    steps = plan.epochs * plan.steps_per_epoch
    assert plan.batch_size <= min(rows, bounds.batch_size)
    assert steps <= max(bounds.steps, plan.epochs)
    assert steps * plan.batch_size <= bounds.passes * rows or plan.steps_per_epoch == 1
    assert plan.patience == bounds.patience


@pytest.mark.parametrize(
    ("rows", "batch_size", "steps"),
    [(100, 64, 300), (1000, 64, 3120), (3072, 128, 4800), (100_000, 256, 5000)],
)
def test_few_rows_get_small_batches_and_enough_steps(rows, batch_size, steps):
    plan = plan_training(rows)
    assert (plan.batch_size, plan.epochs * plan.steps_per_epoch) == (batch_size, steps)
