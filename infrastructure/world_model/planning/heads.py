"""How a network's raw outputs become the columns of a next state, in recorded units.

Shapes: M members, N rows, O raw outputs (see `split_heads`), X columns of the state, L labels of
all `Discrete` targets, Q columns: X of next values, the reward, L, and X logarithms of variances.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from infrastructure.agent_contract.transition import Box
from infrastructure.world_model.distributions import Calibration
from infrastructure.world_model.distributions.metrics import SMALLEST_PROBABILITY
from infrastructure.world_model.fitting import FittedModel
from infrastructure.world_model.fitting.rollout_fields import NOT_IN_STATE
from infrastructure.world_model.networks.loss import bounded_variance
from infrastructure.world_model.planning.layout import MORE_LABELS, Layout


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelHead:
    """A `Discrete` target.

    Attributes:
        columns: Its columns among the Q.
        weights: Weights of ensemble and linear model in the blend.
        base: Logarithms of the base rate, times its weight, ``[L]`` float32.
        temperature: Calibrated divisor of the log-probabilities.
        success: Position of the spec's success label, if this target has it.
        line: Calibrated slope and offset of that label's log-odds.
    """

    columns: slice
    weights: tuple[float, float]
    base: Tensor
    temperature: float
    success: int | None
    line: tuple[float, float]

    def probabilities(self, ensemble_MNQ: Tensor, linear_MNQ: Tensor | None) -> Tensor:
        """Calibrated probabilities of the labels, ``[M, N, L]``, member by member."""
        log_MNL = self.base + self.weights[0] * _log_softmax(ensemble_MNQ[..., self.columns])
        if linear_MNQ is not None:
            log_MNL = log_MNL + self.weights[1] * _log_softmax(linear_MNQ[..., self.columns])
        probability_MNL = (log_MNL / self.temperature).softmax(-1)
        if self.success is None:
            return probability_MNL
        chance_MN = probability_MNL[..., self.success]
        scaled_MN = (self.line[0] * chance_MN.logit(1e-7) + self.line[1]).sigmoid()
        rest_MN = (1.0 - scaled_MN) / (1.0 - chance_MN).clamp(min=1e-7)
        probability_MNL = probability_MNL * rest_MN[..., None]
        probability_MNL[..., self.success] = scaled_MN
        return probability_MNL


class Heads:
    """Linear maps from raw outputs to the Q columns, and what is not linear about them.

    Args:
        model: Fitted model, whose blend and calibration are applied to each member.
        state: Columns of the state.
        reward: Scalar `Box` target to return as the reward; None for none.

    Attributes:
        fold: Map of the ensemble's raw outputs, ``[O, Q]`` float32.
        linear: Map of the linear model's outputs; None if the blend has no share of it.
        replaced: Whether the prediction replaces the current state's column, instead of being
            added to it, ``[X]`` bool.
        changed: Whether the prediction is a change of the column, ``[X]`` bool.
        offset: What is added to the state's columns besides, ``[X]`` float64.
        reward_offset: What is added to the reward.
        labels: Heads of `Discrete` targets.
    """

    def __init__(self, model: FittedModel, state: Layout, reward: str | None) -> None:
        codec, shape = model.codec, model.linear.shape
        self.width, logits = state.width, sum(shape.labels.values())
        outputs = 2 * sum(shape.boxes.values()) + logits
        total = 2 * self.width + 1 + logits
        fold, offset = torch.zeros(outputs, total), torch.zeros(self.width + 1).double()
        linear = torch.zeros(sum(shape.boxes.values()) + logits, total)
        self.replaced = torch.zeros(self.width, dtype=torch.bool)
        self.changed = torch.zeros(self.width, dtype=torch.bool)
        self._weight, self._linear_weight = torch.zeros(self.width), torch.zeros(self.width)
        self._scale, self._linear_variance = torch.ones(self.width), torch.zeros(self.width)
        self._correction = _Correction.none(self.width)
        self.labels: dict[str, LabelHead] = {}
        self._log_variances = slice(self.width + 1 + logits, total)
        self.without_noise = slice(0, self.width + 1 + logits)

        for name, target in model.spec.targets.items():
            columns = state.columns.get(name) if name not in NOT_IN_STATE else None
            if columns is not None:
                is_change = isinstance(target, Box) and target.delta
                (self.changed if is_change else self.replaced)[columns] = True
            if columns is not None and name not in codec.heads:
                offset[columns] = _base_rate(model, name)
        at, linear_at = 0, 0
        self._least = codec.min_log_variance
        linear_variances = bounded_variance(model.linear.log_variance.float(), self._least)
        for name, size in shape.boxes.items():
            standardiser, weights = codec.standardisers[name], model.weights[name]
            kept = [dim for dim, varies in enumerate(standardiser.kept) if varies]
            places = [self.width] if name == reward else []
            columns = state.columns.get(name) if name not in NOT_IN_STATE else None
            for start in ([columns.start] if columns is not None else []) + places:
                for dim, mean in enumerate(standardiser.mean):
                    offset[start + dim] = mean
                for row, dim in enumerate(kept):
                    scale = standardiser.scale[dim]
                    fold[at + row, start + dim] = weights[0] * scale
                    linear[linear_at + row, start + dim] = weights[1] * scale
                    if start == self.width:
                        continue
                    fold[at + size + row, self._log_variances.start + start + dim] = 1.0
                    self._weight[start + dim], self._linear_weight[start + dim] = weights
                    self._scale[start + dim] = scale
                    self._linear_variance[start + dim] = linear_variances[linear_at + row]
                    self._correction.read(start + dim, model.calibration, name, dim)
            at, linear_at = at + 2 * size, linear_at + size
        place = self.width + 1
        for name, size in shape.labels.items():
            block = torch.arange(size)
            fold[at + block, place + block] = 1.0
            linear[linear_at + block, place + block] = 1.0
            self.labels[name] = _label_head(model, name, slice(place, place + size))
            at, linear_at, place = at + size, linear_at + size, place + size
        self.fold = fold
        self.offset, self.reward_offset = offset[:-1], float(offset[-1])
        blended = any(model.weights[name][1] > 0.0 for name in codec.heads)
        self.linear = linear if blended else None

    def noise(
        self, ensemble_MNQ: Tensor, linear_MNQ: Tensor | None, generator: torch.Generator
    ) -> Tensor:
        """Draw what is added to each next value, member by member, ``[M, N, X]`` float32."""
        deviation_MNX = self.deviation(ensemble_MNQ, linear_MNQ)
        return deviation_MNX * standard_student(self._correction.tail, deviation_MNX, generator)

    def deviation(self, ensemble_MNQ: Tensor, linear_MNQ: Tensor | None) -> Tensor:
        """Standard deviation of each next value, member by member, ``[M, N, X]`` float32.

        That of the mixture of ensemble, linear model and base rate, which is standard normal in
        the units of the targets' standardisers; then calibrated.
        """
        first_X, second_X = self._weight, self._linear_weight
        rest_X = (1.0 - first_X - second_X).clamp(min=0.0)
        share_MNX = ensemble_MNQ[..., : self.width] / self._scale
        mean_MNX = share_MNX
        second_MNX = torch.zeros_like(share_MNX)
        if linear_MNQ is not None:
            second_MNX = linear_MNQ[..., : self.width] / self._scale
            mean_MNX = share_MNX + second_MNX
        within_MNX = (
            first_X * bounded_variance(ensemble_MNQ[..., self._log_variances], self._least)
            + second_X * self._linear_variance
            + rest_X
        )
        between_MNX = (
            first_X * (share_MNX / first_X.clamp(min=1e-6) - mean_MNX).square()
            + second_X * (second_MNX / second_X.clamp(min=1e-6) - mean_MNX).square()
            + rest_X * mean_MNX.square()
        )
        return self._correction.apply((within_MNX + between_MNX).sqrt() * self._scale)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Correction:
    """Calibration of the standard deviations, ``[X]`` float32 each; see `BoxCalibration`.

    Columns that do not vary have the scale 0.
    """

    scale: Tensor
    power: Tensor
    center: Tensor
    edge: Tensor
    tail: Tensor

    @classmethod
    def none(cls, width: int) -> _Correction:
        zeros, ones = torch.zeros(width), torch.ones(width)
        return cls(
            scale=zeros,
            power=ones,
            center=ones.clone(),
            edge=torch.full_like(ones, math.inf),
            tail=zeros.clone(),
        )

    def read(self, column: int, calibration: Calibration, name: str, dimension: int) -> None:
        """Set *column* to the calibration of a dimension of target *name*."""
        fitted = (
            (self.scale, calibration.scales, 1.0),
            (self.power, calibration.powers, 1.0),
            (self.center, calibration.centers, 1.0),
            (self.edge, calibration.edges, math.inf),
            (self.tail, calibration.tails, 0.0),
        )
        for values_X, of_targets, default in fitted:
            each = of_targets.get(name)
            values_X[column] = each[dimension] if each else default

    def apply(self, deviation_MNX: Tensor) -> Tensor:
        share_MNX = deviation_MNX.minimum(self.edge) / self.center
        return self.scale * deviation_MNX * share_MNX ** (self.power - 1.0)


def standard_student(tail_X: Tensor, like_MNX: Tensor, generator: torch.Generator) -> Tensor:
    """Draw from Student's t with mean 0 and variance 1, by Bailey's polar method (1994).

    Args:
        tail_X: One over the degrees of freedom, below 1/2; 0 for a Gaussian.
        like_MNX: Tensor of the shape to draw.
    """
    tail_X = tail_X.clamp(min=1e-6)
    uniform_MNX = 1.0 - torch.rand(like_MNX.shape, generator=generator)
    angle_MNX = 2.0 * torch.pi * torch.rand(like_MNX.shape, generator=generator)
    squared_MNX = (-2.0 * tail_X * uniform_MNX.log()).expm1() * (1.0 - 2.0 * tail_X) / tail_X
    return squared_MNX.sqrt() * angle_MNX.cos()


def _log_softmax(logits_MNL: Tensor) -> Tensor:
    return logits_MNL.log_softmax(-1).clamp(min=math.log(SMALLEST_PROBABILITY))


def _label_head(model: FittedModel, name: str, columns: slice) -> LabelHead:
    success, calibration = model.codec.success_label, model.calibration
    weights, frequencies = model.weights[name], torch.tensor(model.codec.frequencies[name])
    return LabelHead(
        columns=columns,
        weights=weights,
        base=max(0.0, 1.0 - sum(weights)) * frequencies.clamp(min=SMALLEST_PROBABILITY).log(),
        temperature=calibration.temperatures.get(name, 1.0),
        success=success[1] if success is not None and success[0] == name else None,
        line=calibration.success,
    )


def _base_rate(model: FittedModel, name: str) -> Tensor:
    """Columns of a target that did not vary, ``[C]`` or ``[L + 2]``."""
    codec = model.codec
    if not codec.is_discrete(name):
        return torch.tensor(codec.standardisers[name].mean)
    frequencies = torch.tensor((*codec.frequencies[name], *(0.0,) * MORE_LABELS))
    return torch.nn.functional.one_hot(frequencies.argmax(), len(frequencies)).float()
