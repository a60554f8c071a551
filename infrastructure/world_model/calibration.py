"""Post-hoc calibration: one temperature per `Discrete` target, one scale per `Box` dimension.

Fitted on groups that the networks were not trained on; an ensemble's raw variance is too wide
and its raw probabilities too sure or too timid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import cast

import torch
from torch import Tensor

from infrastructure.trajectories.targets import TargetCodec
from infrastructure.world_model.metrics import Z_90, categorical_nll
from infrastructure.world_model.outlook import (
    BoxOutlook,
    DiscreteOutlook,
    Outcomes,
    Outlook,
    TargetOutlook,
)
from infrastructure.world_model.scoring import label_nll

_TEMPERATURES = torch.logspace(-0.7, 0.7, 57, dtype=torch.float64)
_SCALE_BOUNDS = (1e-2, 1e2)


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """Attributes:
    temperatures: `Discrete` target to what its log-probabilities are divided by.
    scales: `Box` target to the factor of each dimension's standard deviation.
    """

    temperatures: Mapping[str, float]
    scales: Mapping[str, tuple[float, ...]]

    @classmethod
    def fit(cls, outlook: Outlook, outcomes: Outcomes, codec: TargetCodec) -> Calibration:
        """Choose temperatures by likelihood and scales so that 90 % intervals hold 90 %."""
        temperatures, scales = {}, {}
        for name in codec.heads:
            expected = outlook[name]
            if isinstance(expected, DiscreteOutlook):
                nll = [
                    float(_label_nll(_tempered(expected, float(t)), outcomes[name], codec, name))
                    for t in _TEMPERATURES
                ]
                temperatures[name] = float(_TEMPERATURES[nll.index(min(nll))])
            else:
                error_NC = (outcomes[name] - expected.mean).abs() / expected.variance.sqrt()
                scale_C = (error_NC.quantile(0.9, dim=0) / Z_90).clamp(*_SCALE_BOUNDS)
                kept_C = torch.tensor(codec.standardisers[name].kept)
                scales[name] = tuple(scale_C.where(kept_C, 1.0).tolist())
        return cls(temperatures=temperatures, scales=scales)

    def apply(self, outlook: Outlook) -> dict[str, TargetOutlook]:
        """The calibrated outlook; targets without calibration stay as they are."""
        calibrated: dict[str, TargetOutlook] = dict(outlook)
        for name, expected in outlook.items():
            if isinstance(expected, DiscreteOutlook) and name in self.temperatures:
                calibrated[name] = _tempered(expected, self.temperatures[name])
            elif isinstance(expected, BoxOutlook) and name in self.scales:
                scale_C = torch.tensor(self.scales[name], dtype=torch.float64)
                calibrated[name] = BoxOutlook(
                    mean=expected.mean,
                    variance=expected.variance * scale_C.square(),
                    epistemic=expected.epistemic,
                )
        return calibrated

    def to_json(self) -> dict[str, object]:
        """The calibration as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> Calibration:
        """Read what `to_json` wrote.

        Raises:
            KeyError, TypeError, AttributeError: *value* is no calibration.
        """
        scales = cast(Mapping[str, list[float]], value["scales"])
        return cls(
            temperatures=dict(cast(Mapping[str, float], value["temperatures"])),
            scales={name: tuple(scale) for name, scale in scales.items()},
        )


def _label_nll(expected: DiscreteOutlook, label_N: Tensor, codec: TargetCodec, name: str) -> Tensor:
    """Mean; of the success target, that of success alone: it is what is ranked by."""
    success = codec.spec.success
    if success is not None and success[0] == name:
        return label_nll(expected, label_N, codec.labels(name).index(success[1])).mean()
    return categorical_nll(expected.probabilities, label_N).mean()


def _tempered(expected: DiscreteOutlook, temperature: float) -> DiscreteOutlook:
    log_NL = expected.probabilities.clamp(min=1e-12).log()
    return DiscreteOutlook(
        probabilities=(log_NL / temperature).softmax(dim=1), epistemic=expected.epistemic
    )
