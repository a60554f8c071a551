"""Makes experiments to freeze: from an agent's job, or from a language model in a folder."""

from infrastructure.precision_lab.freezing.agent_jobs import (
    FreezeSize,
    policy_job_experiment,
    world_model_experiment,
)
from infrastructure.precision_lab.freezing.base_model import (
    BaseModelSize,
    base_model_experiment,
)

__all__ = [
    "BaseModelSize",
    "FreezeSize",
    "base_model_experiment",
    "policy_job_experiment",
    "world_model_experiment",
]
