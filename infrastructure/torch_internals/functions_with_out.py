"""Activations that write into given memory, which `torch.nn.functional` does not take."""

from __future__ import annotations

from typing import Any

import torch

from infrastructure.torch_internals.guard import UnavailableError

_functions: Any = getattr(torch._C, "_nn", None)  # its stubs lack `out`
if _functions is None or not (hasattr(_functions, "silu") and hasattr(_functions, "gelu")):
    raise UnavailableError("torch._C._nn.silu and gelu", "a fleet")
silu, gelu = _functions.silu, _functions.gelu
