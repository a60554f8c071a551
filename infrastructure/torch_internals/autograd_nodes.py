"""What the autograd graph knows of tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
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


def leaves(root: Tensor) -> Iterator[Tensor]:
    """Each tensor that a backward pass from *root* would give a gradient to."""
    nodes: list[Any] = [root.grad_fn]
    known = set(nodes)
    while nodes:
        node = nodes.pop()
        if hasattr(node, "variable"):  # torch's AccumulateGrad
            yield node.variable
        new = {below for below, _ in node.next_functions if below is not None} - known
        known |= new
        nodes.extend(new)
