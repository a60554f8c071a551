"""`WorldModelAgent`, the base class of most agents, and the names that its authors need."""

from infrastructure.agent_contract import RunContext, Schedule, Transition
from infrastructure.agent_contract.transition import Box, Discrete, Text, TransitionSpec
from infrastructure.world_model_agent.world_model_agent import WorldModelAgent

__all__ = [
    "Box",
    "Discrete",
    "RunContext",
    "Schedule",
    "Text",
    "Transition",
    "TransitionSpec",
    "WorldModelAgent",
]
