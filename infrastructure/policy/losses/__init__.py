"""Losses of policies: pure functions of log-probabilities, advantages and masks, in float32.

`LossInputs` is what each loss takes, `PolicyLoss` what it returns. Advantages, reductions, the KL
penalty, the value loss and FlowRL's network are in the modules of those names.
"""

from infrastructure.policy.losses.flowrl import flowrl_loss
from infrastructure.policy.losses.grpo import dr_grpo_loss, grpo_loss
from infrastructure.policy.losses.gspo import gspo_loss
from infrastructure.policy.losses.inputs import LossInputs, PolicyLoss
from infrastructure.policy.losses.kl import kl_loss
from infrastructure.policy.losses.ppo import ppo_loss, value_loss
from infrastructure.policy.losses.surrogate import Clip

__all__ = [
    "Clip",
    "LossInputs",
    "PolicyLoss",
    "dr_grpo_loss",
    "flowrl_loss",
    "grpo_loss",
    "gspo_loss",
    "kl_loss",
    "ppo_loss",
    "value_loss",
]
