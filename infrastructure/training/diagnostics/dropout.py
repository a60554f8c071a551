"""Dropout off, training mode on: for passes in two precisions that are to draw the same numbers."""

from __future__ import annotations

from torch import nn

_DROPOUT = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)


def switch_off_dropout(model: nn.Module) -> None:
    """Let every dropout of torch's own modules in *model* pass everything through."""
    for module in model.modules():
        if isinstance(module, _DROPOUT):
            module.eval()
        elif isinstance(module, nn.MultiheadAttention | nn.RNNBase):
            module.dropout = 0.0
