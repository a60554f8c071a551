"""Hash of weights: a result records which ones it was computed with."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch.nn import Module


def weights_sha256(models: Mapping[str, Module]) -> str:
    """SHA-256 of names, types, shapes and bytes of the weights and buffers of *models*."""
    digest = hashlib.sha256()
    for model_name, model in models.items():
        for name, tensor in sorted(model.state_dict().items()):
            described = f"{model_name}.{name} {tensor.dtype} {tuple(tensor.shape)}\n"
            digest.update(described.encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()
