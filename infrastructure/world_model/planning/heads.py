"""How a network's raw outputs become the columns of a next state, in recorded units.

Shapes: M members, N rows, O raw outputs (see `split_heads`), X columns of the state, L labels of
all `Discrete` targets, Q columns: X of next values, the reward, L, and X logarithms of variances.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from infrastructure.agent_contract.transition import Box
from infrastructure.world_model.fitting import FittedModel
from infrastructure.world_model.networks.loss import bounded_variance
from infrastructure.world_model.planning.layout import Layout

NOT_IN_STATE = ("reward", "terminated")


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelHead:
    """A `Discrete` target.

    Attributes:
        columns: Its columns among the Q.
        weight: Share of the ensemble in the blend.
        temperature: Calibrated divisor of the log-probabilities.
        success: Position of the spec's success label, if this target has it.
        line: Calibrated slope and offset of that label's log-odds.
    """

    columns: slice
    weight: float
    temperature: float
    success: int | None
    line: tuple[float, float]

    def probabilities(self, ensemble_MNQ: Tensor, linear_MNQ: Tensor | None) -> Tensor:
        """Calibrated probabilities of the labels, ``[M, N, L]``, member by member."""
        log_MNL = ensemble_MNQ[..., self.columns].log_softmax(-1)
        if linear_MNQ is not None:
            linear_MNL = linear_MNQ[..., self.columns].log_softmax(-1)
            log_MNL = self.weight * log_MNL + (1.0 - self.weight) * linear_MNL
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
        keep: Factor of the current state's columns, ``[X]`` float64: 1 where the prediction is
            added to them, 0 where it replaces them.
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
        keep = torch.ones(self.width, dtype=torch.float64)
        self._variance_scale = torch.zeros(self.width)
        self._linear_variance = torch.zeros(self.width)
        self._scale, self._weight = torch.ones(self.width), torch.ones(self.width)
        self.labels: dict[str, LabelHead] = {}
        self._noise = slice(self.width + 1 + logits, total)
        self.without_noise = slice(0, self.width + 1 + logits)

        for name, target in model.spec.targets.items():
            columns = state.columns.get(name) if name not in NOT_IN_STATE else None
            if columns is not None and not (isinstance(target, Box) and target.delta):
                keep[columns] = 0.0
            if columns is not None and name not in codec.heads:
                offset[columns] = _base_rate(model, name)
        at, linear_at = 0, 0
        linear_variances = bounded_variance(model.linear.log_variance.float())
        for name, size in shape.boxes.items():
            standardiser, weight = codec.standardisers[name], _ensemble_weight(model, name)
            kept = [dim for dim, varies in enumerate(standardiser.kept) if varies]
            places = [self.width] if name == reward else []
            columns = state.columns.get(name) if name not in NOT_IN_STATE else None
            deviations = _deviation_factors(model, name)
            for start in ([columns.start] if columns is not None else []) + places:
                for dim, mean in enumerate(standardiser.mean):
                    offset[start + dim] = mean
                for row, dim in enumerate(kept):
                    scale = standardiser.scale[dim]
                    fold[at + row, start + dim] = weight * scale
                    linear[linear_at + row, start + dim] = (1.0 - weight) * scale
                    if start == self.width:
                        continue
                    fold[at + size + row, self._noise.start + start + dim] = 1.0
                    self._scale[start + dim] = scale
                    self._variance_scale[start + dim] = (scale * deviations[dim]) ** 2
                    self._linear_variance[start + dim] = linear_variances[linear_at + row]
                    self._weight[start + dim] = weight
            at, linear_at = at + 2 * size, linear_at + size
        place = self.width + 1
        for name, size in shape.labels.items():
            block = torch.arange(size)
            fold[at + block, place + block] = 1.0
            linear[linear_at + block, place + block] = 1.0
            self.labels[name] = _label_head(model, name, slice(place, place + size))
            at, linear_at, place = at + size, linear_at + size, place + size
        self.fold, self.keep = fold, keep
        self.offset, self.reward_offset = offset[:-1], float(offset[-1])
        weights = [_ensemble_weight(model, name) for name in codec.heads]
        self.linear = linear if min(weights) < 1.0 else None

    def deviation(self, ensemble_MNQ: Tensor, linear_MNQ: Tensor | None) -> Tensor:
        """Standard deviation of each next value, member by member, ``[M, N, X]`` float32."""
        weight_X = self._weight
        variance_MNX = weight_X * bounded_variance(ensemble_MNQ[..., self._noise])
        if linear_MNQ is not None:
            rest_X = 1.0 - weight_X
            within_MNX = variance_MNX + rest_X * self._linear_variance
            first_MNX = ensemble_MNQ[..., : self.width] / weight_X.clamp(min=1e-6)
            second_MNX = linear_MNQ[..., : self.width] / rest_X.clamp(min=1e-6)
            between_MNX = weight_X * rest_X * (first_MNX - second_MNX).square()
            variance_MNX = within_MNX + between_MNX / self._scale.square()
        return (variance_MNX * self._variance_scale).sqrt()


def _ensemble_weight(model: FittedModel, name: str) -> float:
    """Share of the ensemble in the blend of target *name*."""
    del name
    return model.ensemble_weight


def _deviation_factors(model: FittedModel, name: str) -> tuple[float, ...]:
    """Calibrated factor of each dimension's standard deviation, of `Box` target *name*."""
    scales = model.calibration.scales.get(name)
    return scales or (1.0,) * len(model.codec.standardisers[name].kept)


def _label_head(model: FittedModel, name: str, columns: slice) -> LabelHead:
    success, calibration = model.codec.success_label, model.calibration
    return LabelHead(
        columns=columns,
        weight=_ensemble_weight(model, name),
        temperature=calibration.temperatures.get(name, 1.0),
        success=success[1] if success is not None and success[0] == name else None,
        line=calibration.success,
    )


def _base_rate(model: FittedModel, name: str) -> Tensor:
    """Columns of a target that did not vary, ``[C]`` or ``[L + 1]``."""
    codec = model.codec
    if not codec.is_discrete(name):
        return torch.tensor(codec.standardisers[name].mean)
    frequencies = torch.tensor((*codec.frequencies[name], 0.0))
    return torch.nn.functional.one_hot(frequencies.argmax(), len(frequencies)).float()
