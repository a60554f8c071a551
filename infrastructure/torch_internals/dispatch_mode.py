"""Modes that see each operation which torch carries out; torch documents no other way."""

from __future__ import annotations

from infrastructure.torch_internals.guard import UnavailableError

try:
    from torch.utils._python_dispatch import TorchDispatchMode
except ImportError as error:
    raise UnavailableError(
        "torch.utils._python_dispatch.TorchDispatchMode", "the diagnostics of a training"
    ) from error

__all__ = ["TorchDispatchMode"]
