"""Rollout: generate completions, and record the log-probability of each sampled token.

`RolloutEngine` is the protocol; `TransformersRollout` runs here, `VllmRollout` calls vLLM.
"""

from infrastructure.policy.rollout.engine import (
    NonFiniteLogitsError,
    RolloutEngine,
    RolloutRequestError,
)
from infrastructure.policy.rollout.transformers_rollout import TransformersRollout
from infrastructure.policy.rollout.vllm_rollout import VllmRollout

__all__ = [
    "NonFiniteLogitsError",
    "RolloutEngine",
    "RolloutRequestError",
    "TransformersRollout",
    "VllmRollout",
]
