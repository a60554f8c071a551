"""Trees of containers as torch takes them apart, those of registered classes included."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from infrastructure.torch_internals.guard import UnavailableError

try:
    from torch.utils import _pytree

    map_only: Callable[[type, Callable[[Any], Any], Any], Any] = _pytree.tree_map_only
    NODES: Mapping[type, Any] = _pytree.SUPPORTED_NODES
except (ImportError, AttributeError) as error:
    raise UnavailableError("torch.utils._pytree", "a forward pass in half precision") from error
