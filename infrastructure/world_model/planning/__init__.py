"""Rollouts and plans: imagine many steps with a fitted model, and choose actions by them."""

from infrastructure.world_model.planning.dynamics import Dynamics
from infrastructure.world_model.planning.planner import Planner
from infrastructure.world_model.planning.rollouts import (
    Policy,
    RewardFunction,
    Rollout,
    roll_out,
)
from infrastructure.world_model.planning.settings import Plan, PlanSettings

__all__ = [
    "Dynamics",
    "Plan",
    "PlanSettings",
    "Planner",
    "Policy",
    "RewardFunction",
    "Rollout",
    "roll_out",
]
