"""What an agent is. Imports neither torch nor the daemon."""

from infrastructure.agent_contract.agent import CONTRACT_VERSION, Agent
from infrastructure.agent_contract.run_context import RunContext
from infrastructure.agent_contract.schedule import Schedule
from infrastructure.agent_contract.training_job import (
    Evaluation,
    EvaluationReport,
    Forward,
    Publication,
    TrainingJob,
)
from infrastructure.agent_contract.transition import Transition

__all__ = [
    "CONTRACT_VERSION",
    "Agent",
    "Evaluation",
    "EvaluationReport",
    "Forward",
    "Publication",
    "RunContext",
    "Schedule",
    "TrainingJob",
    "Transition",
]
