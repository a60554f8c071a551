"""Loss caused by half precision: trainings that differ in nothing else, paired by seed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch

from benchmarks.measuring.spread import Interval
from benchmarks.se_darwin.learning import choose, train_ensemble
from benchmarks.se_darwin.pendulum import plan_swing
from benchmarks.se_darwin.statistics import upper_bound_of_mean
from benchmarks.se_darwin.study import TrainedFold
from infrastructure.events.precision_state import PRECISIONS, PrecisionName
from infrastructure.world_model.distributions import (
    BoxDistribution,
    DiscreteDistribution,
    TargetDistribution,
    base_rate_distributions,
)
from infrastructure.world_model.distributions.metrics import categorical_nll
from infrastructure.world_model.fitting import FittedModel, fit_linear
from infrastructure.world_model.fitting.training_data import TrainingData

HALVES: tuple[PrecisionName, ...] = ("fp16", "bf16")
Losses = dict[PrecisionName, dict[str, float]]


def losses_of(model: FittedModel, data: TrainingData) -> dict[str, float]:
    """Return the error of each `Box` and the remaining NLL of each target, on the test groups.

    The NLL of a density may be 0 or negative, so a relative change of it is meaningless. The
    relative change of its gain over the base rate is not: the value is ``1 - (base - NLL)`` in
    nats, lower is better, and `gaps` divides by the gain.
    """
    predicted, outcomes = model.predict(data.test.features), data.test.outcomes
    base = base_rate_distributions(data.codec, len(data.test.features))
    losses = {}
    for name in data.codec.heads:
        expected, value = predicted[name], outcomes[name]
        losses[f"{name} NLL"] = 1.0 - _nll(base[name], value) + _nll(expected, value)
        if isinstance(expected, BoxDistribution):
            error = (value - expected.mean) / value.std(0)
            losses[f"{name} error"] = float(error.square().mean().sqrt())
    return losses


def repair_gap(trained: Sequence[TrainedFold]) -> list[Losses]:
    """Return the losses of the study's ensembles: one seed per fold, in three precisions."""
    return [
        {
            precision: losses_of(learned.families["ensemble"], item.fold.data)
            for precision, learned in item.ours.items()
        }
        for item in trained
    ]


def control_gap(
    data: TrainingData, steps: int, swing_steps: int, seeds: Iterable[int]
) -> tuple[list[Losses], list[dict[PrecisionName, float]]]:
    """Learn the dynamics of the example agent's pendulum once per seed and precision.

    Returns:
        The losses, and the returns of planning in each model from the same starts.
    """
    pairs, returns = [], []
    linear = fit_linear(data)
    for seed in seeds:
        models = {
            precision: choose(data, train_ensemble(data, precision, steps, seed), linear).families[
                "ensemble"
            ]
            for precision in PRECISIONS
        }
        pairs.append({name: losses_of(model, data) for name, model in models.items()})
        returns.append(
            {name: plan_swing(model, swing_steps, seed) for name, model in models.items()}
        )
    return pairs, returns


def gaps(pairs: Sequence[Losses]) -> dict[str, Interval]:
    """Return losses relative to FP32: mean over seeds; ``high`` is the one-sided 95 % bound."""
    return {
        f"{half} {name}": upper_bound_of_mean([_gap(pair, half, name) for pair in pairs])
        for half in HALVES
        for name in pairs[0]["fp32"]
    }


def _gap(pair: Losses, half: PrecisionName, name: str) -> float:
    lost = pair[half][name] - pair["fp32"][name]
    full = pair["fp32"][name]
    if lost == 0.0:  # also where FP32 predicts the base rate, and so has no skill to lose
        return 0.0
    whole = 1.0 - full if name.endswith("NLL") else full
    return lost / whole if whole else math.inf


def _nll(expected: TargetDistribution, value: torch.Tensor) -> float:
    if isinstance(expected, DiscreteDistribution):
        return float(categorical_nll(expected.probabilities, value).mean())
    return float(expected.nll(value).mean())
