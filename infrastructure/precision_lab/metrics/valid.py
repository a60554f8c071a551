"""Valid values of masked tensors on the host, and statistics of them in float64.

B sequences, S predicted tokens, N valid tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from infrastructure.events.precision_state import PrecisionName
from infrastructure.precision_lab.errors import LabError
from infrastructure.training.precision import Precision


class MetricError(LabError):
    """A metric was asked for tensors that it is not defined for; the message names them."""


def valid_values(mask: Tensor, **values: Tensor) -> list[Tensor]:
    """The values at valid positions, [N], each in its own dtype, detached, on the host.

    Args:
        mask: Valid positions, bool, any shape.
        **values: Tensors of the mask's shape, by the names of the error message.

    Raises:
        MetricError: A shape differs from the mask's, the mask is not bool, or nothing is valid.
    """
    if mask.dtype != torch.bool:
        raise MetricError(f"the mask is {mask.dtype}: pass bool, for example with mask.bool()")
    for name, value in values.items():
        if value.shape != mask.shape:
            raise MetricError(
                f"{name} has the shape {tuple(value.shape)} and the mask {tuple(mask.shape)}: "
                "log-probabilities and values belong to predicted tokens, one fewer than tokens"
            )
    mask = mask.cpu()
    if not mask.any():
        raise MetricError("no token is valid: every completion is empty or masked")
    return [value.detach().cpu()[mask] for value in values.values()]


def rounded(values: Tensor, precision: PrecisionName) -> Tensor:
    """*values* in the dtype of *precision*, rounded to nearest, ties to even."""
    return values.to(Precision(precision).compute)


def mean_of(values: Tensor) -> float:
    """Mean in float64; of bools, the share that is true."""
    return values.double().mean().item()


def quantile_of(values_N: Tensor, share: float) -> float:
    """Quantile in float64, interpolated linearly between order statistics; NaN if one is NaN."""
    return values_N.double().quantile(share).item()
