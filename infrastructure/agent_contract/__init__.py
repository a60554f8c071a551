"""The contract between agents and the daemon. Imports neither torch nor the daemon.

`agent_contract.agent`, `.on_policy_job`, `.command` and `.transition` hold further names for
plugin authors.
"""

from infrastructure.agent_contract.agent import CONTRACT_VERSION, Agent
from infrastructure.agent_contract.parts import Part, Target
from infrastructure.agent_contract.run_context import RunContext
from infrastructure.agent_contract.schedule import Schedule
from infrastructure.agent_contract.training_job import (
    Evaluation,
    EvaluationReport,
    Forward,
    Job,
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
    "Job",
    "Part",
    "Publication",
    "RunContext",
    "Schedule",
    "Target",
    "TrainingJob",
    "Transition",
]
