"""Code that no ``__torch_function__`` sees, neither of a tensor's class nor of a mode."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from infrastructure.torch_internals.guard import UnavailableError


def without_torch_function() -> AbstractContextManager[object]:
    """A context whose calls of torch pass by every ``__torch_function__``.

    Raises:
        UnavailableError: This torch has no such context.
    """
    context_class = getattr(torch._C, "DisableTorchFunction", None)
    if context_class is None:
        raise UnavailableError("torch._C.DisableTorchFunction", "the precision lab")
    context: AbstractContextManager[object] = context_class()
    return context
