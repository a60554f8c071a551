"""Post-hoc calibration, fitted on groups that the networks were not trained on.

An ensemble's raw variance is too wide, its raw probabilities are over- or underconfident, and
outputs trained to rank have a scale of their own. So each `Discrete` target gets a temperature,
the success label a line through its log-odds (Platt scaling), and each `Box` dimension a factor
that makes the 90 % interval cover 90 % (split conformal prediction).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import cast

import torch
from torch import Tensor

from infrastructure.trajectories.encoding import Outcomes, TargetCodec
from infrastructure.world_model.distributions.metrics import Z_90, categorical_nll
from infrastructure.world_model.distributions.predictive import (
    BoxDistribution,
    DiscreteDistribution,
    TargetDistribution,
    TargetDistributions,
)

_TEMPERATURES = torch.logspace(-0.7, 0.7, 57, dtype=torch.float64)
_SCALE_BOUNDS = (1e-2, 1e2)
_SLOPE_BOUNDS = (0.1, 4.0)
_PRIOR_ROWS = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """Parameters of the calibration.

    Attributes:
        temperatures: Divisor of the log-probabilities of each `Discrete` target.
        scales: Factor of each dimension's standard deviation, of each `Box` target.
        success: Slope and offset of the success label's log-odds.
    """

    temperatures: Mapping[str, float]
    scales: Mapping[str, tuple[float, ...]]
    success: tuple[float, float] = (1.0, 0.0)

    @classmethod
    def fit(
        cls, predicted: TargetDistributions, outcomes: Outcomes, codec: TargetCodec
    ) -> Calibration:
        """Fit temperatures and line by likelihood, scales by the quantile of the errors."""
        temperatures, scales, line = {}, {}, (1.0, 0.0)
        success = codec.success_label
        for name in codec.heads:
            distribution = predicted[name]
            if isinstance(distribution, DiscreteDistribution):
                nll = [
                    categorical_nll(
                        _apply_temperature(distribution, float(t)).probabilities, outcomes[name]
                    )
                    for t in _TEMPERATURES
                ]
                best = int(torch.stack(nll).mean(1).argmin())
                temperatures[name] = float(_TEMPERATURES[best])
                if success is not None and success[0] == name:
                    tempered = _apply_temperature(distribution, temperatures[name])
                    line = _fit_platt(tempered.log_odds(success[1]), outcomes[name] == success[1])
            else:
                error_NC = (outcomes[name] - distribution.mean).abs() / distribution.variance.sqrt()
                level = min(1.0, 0.9 * (1.0 + 1.0 / len(error_NC)))
                scale_C = (error_NC.quantile(level, dim=0) / Z_90).clamp(*_SCALE_BOUNDS)
                kept_C = torch.tensor(codec.standardisers[name].kept)
                scales[name] = tuple(scale_C.where(kept_C, 1.0).tolist())
        return cls(temperatures=temperatures, scales=scales, success=line)

    def apply(
        self, predicted: TargetDistributions, codec: TargetCodec
    ) -> dict[str, TargetDistribution]:
        """Return calibrated distributions; targets without calibration are unchanged."""
        calibrated: dict[str, TargetDistribution] = dict(predicted)
        success = codec.success_label
        for name, distribution in predicted.items():
            if isinstance(distribution, DiscreteDistribution) and name in self.temperatures:
                tempered = _apply_temperature(distribution, self.temperatures[name])
                if success is not None and success[0] == name:
                    tempered = _apply_platt(tempered, success[1], self.success)
                calibrated[name] = tempered
            elif isinstance(distribution, BoxDistribution) and name in self.scales:
                scale_C = torch.tensor(self.scales[name], dtype=torch.float64)
                variance = distribution.variance * scale_C.square()
                calibrated[name] = replace(distribution, variance=variance)
        return calibrated

    def to_json(self) -> dict[str, object]:
        """Return the calibration as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> Calibration:
        """Rebuild the calibration that `to_json` wrote.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: *value* does not describe one.
        """
        scales = cast(Mapping[str, list[float]], value["scales"])
        slope, offset = map(float, cast(list[float], value["success"]))
        return cls(
            temperatures=dict(cast(Mapping[str, float], value["temperatures"])),
            scales={name: tuple(scale) for name, scale in scales.items()},
            success=(slope, offset),
        )


def _apply_temperature(
    distribution: DiscreteDistribution, temperature: float
) -> DiscreteDistribution:
    log_NL = distribution.probabilities.clamp(min=1e-12).log()
    return replace(distribution, probabilities=(log_NL / temperature).softmax(dim=1))


def _apply_platt(
    distribution: DiscreteDistribution, label: int, line: tuple[float, float]
) -> DiscreteDistribution:
    """Scale the log-odds of *label* by *line*; the other labels keep their proportions."""
    probability_N = (line[0] * distribution.log_odds(label) + line[1]).sigmoid()
    rest_N = (1.0 - distribution.probabilities[:, label]).clamp(min=1e-12)
    scaled_NL = distribution.probabilities * ((1.0 - probability_N) / rest_N)[:, None]
    scaled_NL[:, label] = probability_N
    return replace(distribution, probabilities=scaled_NL)


def _fit_platt(log_odds_N: Tensor, happened_N: Tensor) -> tuple[float, float]:
    """Fit slope and offset by Newton's method, with a prior at (1, 0) worth two rows."""
    line = torch.tensor([1.0, 0.0], dtype=torch.float64)
    prior = line.clone()
    inputs_N2 = torch.stack([log_odds_N, torch.ones_like(log_odds_N)], dim=1)
    for _ in range(25):
        probability_N = (inputs_N2 @ line).sigmoid()
        gradient_2 = inputs_N2.T @ (probability_N - happened_N.double())
        gradient_2 = gradient_2 + _PRIOR_ROWS * (line - prior)
        curvature_22 = (inputs_N2.T * (probability_N * (1.0 - probability_N))) @ inputs_N2
        curvature_22 = curvature_22 + _PRIOR_ROWS * torch.eye(2, dtype=torch.float64)
        line = line - torch.linalg.solve(curvature_22, gradient_2).clamp(-1.0, 1.0)
        line[0] = line[0].clamp(*_SLOPE_BOUNDS)
    return float(line[0]), float(line[1])
