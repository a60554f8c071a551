"""What a node of the autograd graph knows of the tensors that it has made."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.graph import Node

from infrastructure.torch_internals.guard import UnavailableError


def output_dtypes(node: Node) -> list[torch.dtype]:
    """Types of the outputs of the operation whose backward pass *node* is.

    Raises:
        UnavailableError: This torch does not tell.
    """
    outputs: Any = getattr(node, "_input_metadata", None)
    if outputs is None:
        raise UnavailableError("Node._input_metadata", "the measurement of ranges")
    return [output.dtype for output in outputs]
