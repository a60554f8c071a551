"""What FSDP2 keeps to itself: a policy of mixed precision has neither setter nor getter."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch.nn import Module

from infrastructure.torch_internals.guard import UnavailableError


def policy_dtype_of(sharded: Module) -> torch.dtype | None:
    """The ``param_dtype`` of the `MixedPrecisionPolicy` of a module that FSDP2 has sharded.

    Raises:
        UnavailableError: This torch keeps the policy elsewhere.
    """
    try:
        return cast(
            "torch.dtype | None", cast("Any", sharded)._get_fsdp_state()._mp_policy.param_dtype
        )
    except AttributeError as error:
        raise UnavailableError("FSDPModule._get_fsdp_state()._mp_policy", "FSDP2") from error
