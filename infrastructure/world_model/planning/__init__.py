"""Rollouts and plans: imagine many steps with a fitted model, and choose actions by them."""

from infrastructure.world_model.planning.dynamics import Dynamics
from infrastructure.world_model.planning.open_loop import open_loop_error, rollout_metrics
from infrastructure.world_model.planning.planner import Planner
from infrastructure.world_model.planning.rollouts import (
    Actions,
    Policy,
    RewardFunction,
    Rollout,
    roll_out,
)
from infrastructure.world_model.planning.settings import Plan, PlanSettings

__all__ = [
    "Actions",
    "Dynamics",
    "Plan",
    "PlanSettings",
    "Planner",
    "Policy",
    "RewardFunction",
    "Rollout",
    "open_loop_error",
    "roll_out",
    "rollout_metrics",
]
