"""Post-hoc calibration, fitted on groups that the networks were not trained on.

An ensemble's raw variance is too wide, its raw probabilities are too sure or too timid, and
what was trained to rank is on a scale of its own. So each `Discrete` target gets a temperature,
the success label a straight line through its log-odds (Platt's), and each `Box` dimension a
factor such that the 90 % interval holds 90 % (split conformal).
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
from infrastructure.world_model.scoring import success_label

_TEMPERATURES = torch.logspace(-0.7, 0.7, 57, dtype=torch.float64)
_SCALE_BOUNDS = (1e-2, 1e2)
_SLOPE_BOUNDS = (0.1, 4.0)
_PRIOR_ROWS = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """Attributes:
    temperatures: `Discrete` target to what its log-probabilities are divided by.
    scales: `Box` target to the factor of each dimension's standard deviation.
    success: Slope and offset of the success label's log-odds.
    """

    temperatures: Mapping[str, float]
    scales: Mapping[str, tuple[float, ...]]
    success: tuple[float, float] = (1.0, 0.0)

    @classmethod
    def fit(cls, outlook: Outlook, outcomes: Outcomes, codec: TargetCodec) -> Calibration:
        """Choose temperatures and line by likelihood, scales by the quantile of the errors."""
        temperatures, scales, line = {}, {}, (1.0, 0.0)
        success = success_label(codec)
        for name in codec.heads:
            expected = outlook[name]
            if isinstance(expected, DiscreteOutlook):
                nll = [
                    categorical_nll(_tempered(expected, float(t)).probabilities, outcomes[name])
                    for t in _TEMPERATURES
                ]
                best = int(torch.stack(nll).mean(1).argmin())
                temperatures[name] = float(_TEMPERATURES[best])
                if success is not None and success[0] == name:
                    tempered = _tempered(expected, temperatures[name])
                    line = _fit_line(tempered.log_odds(success[1]), outcomes[name] == success[1])
            else:
                error_NC = (outcomes[name] - expected.mean).abs() / expected.variance.sqrt()
                level = min(1.0, 0.9 * (1.0 + 1.0 / len(error_NC)))
                scale_C = (error_NC.quantile(level, dim=0) / Z_90).clamp(*_SCALE_BOUNDS)
                kept_C = torch.tensor(codec.standardisers[name].kept)
                scales[name] = tuple(scale_C.where(kept_C, 1.0).tolist())
        return cls(temperatures=temperatures, scales=scales, success=line)

    def apply(self, outlook: Outlook, codec: TargetCodec) -> dict[str, TargetOutlook]:
        """The calibrated outlook; targets without calibration stay as they are."""
        calibrated: dict[str, TargetOutlook] = dict(outlook)
        success = success_label(codec)
        for name, expected in outlook.items():
            if isinstance(expected, DiscreteOutlook) and name in self.temperatures:
                tempered = _tempered(expected, self.temperatures[name])
                if success is not None and success[0] == name:
                    tempered = _moved(tempered, success[1], self.success)
                calibrated[name] = tempered
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
            KeyError, TypeError, ValueError, AttributeError: *value* is no calibration.
        """
        scales = cast(Mapping[str, list[float]], value["scales"])
        slope, offset = map(float, cast(list[float], value["success"]))
        return cls(
            temperatures=dict(cast(Mapping[str, float], value["temperatures"])),
            scales={name: tuple(scale) for name, scale in scales.items()},
            success=(slope, offset),
        )


def _tempered(expected: DiscreteOutlook, temperature: float) -> DiscreteOutlook:
    log_NL = expected.probabilities.clamp(min=1e-12).log()
    return DiscreteOutlook(
        probabilities=(log_NL / temperature).softmax(dim=1), epistemic=expected.epistemic
    )


def _moved(expected: DiscreteOutlook, label: int, line: tuple[float, float]) -> DiscreteOutlook:
    """The probability of *label* moved along *line*; the others share what remains as before."""
    probability_N = (line[0] * expected.log_odds(label) + line[1]).sigmoid()
    rest_N = (1.0 - expected.probabilities[:, label]).clamp(min=1e-12)
    moved_NL = expected.probabilities * ((1.0 - probability_N) / rest_N)[:, None]
    moved_NL[:, label] = probability_N
    return DiscreteOutlook(probabilities=moved_NL, epistemic=expected.epistemic)


def _fit_line(log_odds_N: Tensor, happened_N: Tensor) -> tuple[float, float]:
    """Slope and offset of greatest likelihood by Newton's method; drawn to (1, 0) by two rows."""
    line = torch.tensor([1.0, 0.0], dtype=torch.float64)
    prior = line.clone()
    inputs_N2 = torch.stack([log_odds_N, torch.ones_like(log_odds_N)], dim=1)
    for _ in range(25):
        probability_N = (inputs_N2 @ line).sigmoid()
        slope_2 = inputs_N2.T @ (probability_N - happened_N.double())
        slope_2 = slope_2 + _PRIOR_ROWS * (line - prior)
        curvature_22 = (inputs_N2.T * (probability_N * (1.0 - probability_N))) @ inputs_N2
        curvature_22 = curvature_22 + _PRIOR_ROWS * torch.eye(2, dtype=torch.float64)
        line = line - torch.linalg.solve(curvature_22, slope_2).clamp(-1.0, 1.0)
        line[0] = line[0].clamp(*_SLOPE_BOUNDS)
    return float(line[0]), float(line[1])
