"""Post-hoc calibration, fitted on groups that the networks were not trained on.

An ensemble's raw variance is too wide or too narrow, its raw probabilities are over- or
underconfident, and outputs trained to rank have a scale of their own. So each `Discrete` target
gets a temperature, the success label a line through its log-odds (Platt scaling), and each `Box`
dimension a scale, a power and a tail; see `box_calibration`. Each correction is kept only if it
lowers the negative log-likelihood of groups that it was not fitted on, by more than half a
standard error. The 90 % interval has a factor of its own (conformal prediction), which changes
neither likelihood nor standard deviation.

Shapes: T temperatures, N rows, C dimensions, L labels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import cast

import torch
from torch import Tensor

from infrastructure.trajectories.encoding import Outcomes, TargetCodec
from infrastructure.world_model.distributions.box_calibration import BoxCalibration
from infrastructure.world_model.distributions.cross_validation import fold_numbers, helps
from infrastructure.world_model.distributions.metrics import categorical_nll
from infrastructure.world_model.distributions.predictive import (
    BoxDistribution,
    DiscreteDistribution,
    TargetDistribution,
    TargetDistributions,
)

TEMPERATURE_PRIOR_ROWS = 20.0
"""Strength of the prior on temperatures: ``rows / 2 * log(temperature) ** 2`` nats."""

MIN_TEMPERATURE_ROWS = 50
"""With fewer rows, the temperature is 1."""

_TEMPERATURES = torch.logspace(-0.7, 0.7, 57, dtype=torch.float64)
_SLOPE_BOUNDS = (0.1, 4.0)
_PRIOR_ROWS = 2.0

_TINY, _HUGE = 1e-9, 1e12  # of any factor that a fit can give
_SMALLEST = 5e-324  # of what has the target's unit
_HEAVIEST_TAIL = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """Parameters of the calibration; targets that it does not name are left as they are.

    Attributes:
        temperatures: Divisor of the log-probabilities of each `Discrete` target.
        scales: Factor of each dimension's standard deviation, of each `Box` target; see
            `BoxCalibration`, as for the next five.
        powers, centers, edges, tails, intervals: Of each `Box` target; by default a Gaussian's.
        success: Slope and offset of the success label's log-odds.
    """

    temperatures: Mapping[str, float] = field(default_factory=dict)
    scales: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    powers: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    centers: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    edges: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    tails: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    intervals: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    success: tuple[float, float] = (1.0, 0.0)

    @classmethod
    def fit(
        cls,
        predicted: TargetDistributions,
        outcomes: Outcomes,
        codec: TargetCodec,
        groups: Sequence[str] | None = None,
    ) -> Calibration:
        """Fit by likelihood, and keep the corrections that hold on groups not fitted on.

        Args:
            predicted: Uncalibrated predictions for rows that no network was trained on; targets
                that are missing here are left as they are.
            groups: Group of each row; None if rows are independent.
        """
        temperatures, boxes, line = {}, dict[str, BoxCalibration](), (1.0, 0.0)
        success = codec.success_label
        for name in filter(predicted.__contains__, codec.heads):
            distribution, value = predicted[name], outcomes[name]
            if isinstance(distribution, BoxDistribution):
                kept_C = torch.tensor(codec.standardisers[name].kept)
                boxes[name] = BoxCalibration.fit(distribution, value, kept_C, groups)
                continue
            temperatures[name] = fit_temperature(distribution, value, groups)
            if success is not None and success[0] == name:
                tempered = _apply_temperature(distribution, temperatures[name])
                happened_N = value == success[1]
                line = _fit_line(tempered.log_odds(success[1]), happened_N, groups)
        return cls(
            temperatures=temperatures,
            scales={name: box.scale for name, box in boxes.items()},
            powers={name: box.power for name, box in boxes.items()},
            centers={name: box.center for name, box in boxes.items()},
            edges={name: box.edge for name, box in boxes.items()},
            tails={name: box.tail for name, box in boxes.items()},
            intervals={name: box.interval for name, box in boxes.items()},
            success=line,
        )

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
                calibrated[name] = self._box(name).apply(distribution)
        return calibrated

    def _box(self, name: str) -> BoxCalibration:
        scale = self.scales[name]
        identity = BoxCalibration.identity(len(scale))
        return BoxCalibration(
            scale=scale,
            power=self.powers.get(name, identity.power),
            center=self.centers.get(name, identity.center),
            edge=self.edges.get(name, identity.edge),
            tail=self.tails.get(name, identity.tail),
            interval=self.intervals.get(name, identity.interval),
        )

    def to_json(self) -> dict[str, object]:
        """Return the calibration as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> Calibration:
        """Rebuild the calibration that `to_json` wrote, in this or an earlier release.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: *value* does not describe one, or a
                number is not one that a fit can give.
        """
        slope, offset = map(float, cast(list[float], value["success"]))
        calibration = cls(
            temperatures=dict(cast(Mapping[str, float], value["temperatures"])),
            scales=_tuples(value["scales"]),
            powers=_tuples(value.get("powers", {})),  # earlier releases had Gaussians alone
            centers=_tuples(value.get("centers", {})),
            edges=_tuples(value.get("edges", {})),
            tails=_tuples(value.get("tails", {})),
            intervals=_tuples(value.get("intervals", {})),
            success=(slope, offset),
        )
        calibration._check()
        return calibration

    def _check(self) -> None:
        positive = {name: (each,) for name, each in self.temperatures.items()}
        checked: Sequence[tuple[str, Mapping[str, Sequence[float]], float, float]] = (
            ("temperature", positive, _TINY, _HUGE),
            ("scale", self.scales, _TINY, _HUGE),
            ("power", self.powers, -_HUGE, _HUGE),
            ("center", self.centers, _SMALLEST, math.inf),
            ("edge", self.edges, _SMALLEST, math.inf),
            ("tail", self.tails, 0.0, _HEAVIEST_TAIL),
            ("interval", self.intervals, 0.0, _HUGE),
            ("line of success", {"slope": self.success[:1]}, _TINY, _HUGE),
            ("line of success", {"offset": self.success[1:]}, -_HUGE, _HUGE),
        )
        for what, by_target, low, high in checked:
            for name, numbers in by_target.items():
                if wrong := [each for each in numbers if not low <= each <= high]:
                    raise ValueError(
                        f"the calibration's {what} of {name} must lie in {low:g} to {high:g}, "
                        f"got {wrong[0]!r:.40}"
                    )
        for box in (self.powers, self.centers, self.edges, self.tails, self.intervals):
            for name, numbers in box.items():
                if len(numbers) != len(self.scales.get(name, ())):
                    raise ValueError(f"the calibration of {name} has differing dimensions")


def fit_temperature(
    distribution: DiscreteDistribution, label_N: Tensor, groups: Sequence[str] | None
) -> float:
    """Fit the divisor of the log-probabilities by likelihood, with a prior that favours 1.

    Returns:
        1 with fewer than `MIN_TEMPERATURE_ROWS` rows, or if other groups are not predicted better.
    """
    rows = len(label_N)
    if rows < MIN_TEMPERATURE_ROWS:
        return 1.0
    nll_TN = _nll_by_temperature(distribution, label_N, _TEMPERATURES)
    unchanged_N = categorical_nll(distribution.probabilities, label_N)
    fold_N, folds = fold_numbers(groups, rows)
    fitted_N = unchanged_N.clone()
    for number in range(folds):
        held_out_N = fold_N == number
        best = _best_temperature(nll_TN[:, ~held_out_N].sum(1))
        fitted_N[held_out_N] = nll_TN[best, held_out_N]
    if not helps(unchanged_N - fitted_N, groups):
        return 1.0
    return float(_TEMPERATURES[_best_temperature(nll_TN.sum(1))])


def tempered_nll(distribution: DiscreteDistribution, label_N: Tensor) -> Tensor:
    """Return each row's negative log-likelihood at the likeliest of a few temperatures, ``[N]``."""
    few_T = _TEMPERATURES[::4]
    nll_TN = _nll_by_temperature(distribution, label_N, few_T)
    return nll_TN[_best_temperature(nll_TN.sum(1), few_T)]


def _nll_by_temperature(
    distribution: DiscreteDistribution, label_N: Tensor, temperatures_T: Tensor
) -> Tensor:
    """Return the negative log-likelihood of each row at each temperature, ``[T, N]``."""
    return torch.stack(
        [
            categorical_nll(_apply_temperature(distribution, t).probabilities, label_N)
            for t in temperatures_T.tolist()
        ]
    )


def _best_temperature(total_T: Tensor, temperatures_T: Tensor = _TEMPERATURES) -> int:
    prior_T = 0.5 * TEMPERATURE_PRIOR_ROWS * temperatures_T.log().square()
    return int((total_T + prior_T).argmin())


def _tuples(value: object) -> dict[str, tuple[float, ...]]:
    return {name: tuple(each) for name, each in cast(Mapping[str, list[float]], value).items()}


def _apply_temperature(
    distribution: DiscreteDistribution, temperature: float
) -> DiscreteDistribution:
    if temperature == 1.0:
        return distribution
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


def _fit_line(
    log_odds_N: Tensor, happened_N: Tensor, groups: Sequence[str] | None
) -> tuple[float, float]:
    """Return `_fit_platt`, or (1, 0) if other groups are not predicted better."""
    fold_N, folds = fold_numbers(groups, len(log_odds_N))
    gain_N = torch.zeros_like(log_odds_N)
    sign_N = 2.0 * happened_N.double() - 1.0
    for number in range(folds):
        held_out_N = fold_N == number
        slope, offset = _fit_platt(log_odds_N[~held_out_N], happened_N[~held_out_N])
        fitted_N = (slope * log_odds_N[held_out_N] + offset) * sign_N[held_out_N]
        unchanged_N = log_odds_N[held_out_N] * sign_N[held_out_N]
        log_sigmoid = torch.nn.functional.logsigmoid
        gain_N[held_out_N] = log_sigmoid(fitted_N) - log_sigmoid(unchanged_N)
    return _fit_platt(log_odds_N, happened_N) if helps(gain_N, groups) else (1.0, 0.0)


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
