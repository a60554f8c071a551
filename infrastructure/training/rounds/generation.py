"""One round of an `OnPolicyJob`: its batches, checked, without any effect on the training."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from infrastructure.agent_contract.on_policy_job import OnPolicyJob, Roles
from infrastructure.agent_contract.training_job import Batch
from infrastructure.training.inputs import preserved_generators


def generate(job: OnPolicyJob, round_: int, roles: Roles) -> list[Batch]:
    """The batches of *round_*, counted from 0, generated with *roles*.

    Runs without gradients and leaves every random generator as it was.

    Raises:
        TypeError: The job's ``batches`` yields something other than mappings of tensors.
    """
    device = torch.device(roles.device)
    with preserved_generators(device), torch.no_grad():
        return [_checked(batch, round_) for batch in job.batches(round_, roles)]


def _checked(batch: object, round_: int) -> Batch:
    """A copy of *batch* whose tensors are attached to no graph."""
    if not isinstance(batch, Mapping):
        raise TypeError(
            f"batches({round_}, roles) must yield mappings of tensors, got {type(batch).__name__}"
        )
    others = [name for name, value in batch.items() if not isinstance(value, Tensor)]
    if others or not batch:
        raise TypeError(
            f"batches({round_}, roles) must yield mappings of tensors; "
            + (f"{others} are not tensors" if others else "one mapping is empty")
        )
    return {name: tensor.detach() for name, tensor in batch.items()}
