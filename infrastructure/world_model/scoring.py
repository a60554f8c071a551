"""An outlook held against what came true: the held-out metrics of a world model."""

from __future__ import annotations

import torch
from torch import Tensor

from infrastructure.trajectories.targets import TargetCodec
from infrastructure.world_model.choice import (
    CHOICE_WEIGHT,
    MIN_CHOICES,
    choice_nll,
    count_choices,
)
from infrastructure.world_model.metrics import (
    auroc,
    categorical_nll,
    coverage_90,
    expected_calibration_error,
    gaussian_nll,
)
from infrastructure.world_model.outlook import (
    BoxOutlook,
    DiscreteOutlook,
    Outcomes,
    Outlook,
    base_outlook,
)
from infrastructure.world_model.training_data import DataPart

PRIMARY = "nll_skill"


def row_nll(outlook: Outlook, outcomes: Outcomes, codec: TargetCodec) -> Tensor:
    """Negative log-likelihood of each row in nats, ``[N]`` float64: what a model is judged by.

    Where the spec names a ``success``, it is that of whether that label came true: candidates
    are ranked by its probability, and neither how well failures are told from each other nor a
    rare outlier of another target must decide what is published. Elsewhere it is the mean over
    all targets. In recorded units, so that models with different statistics compare. *codec*
    says which targets and dimensions vary, and so count.
    """
    success = success_label(codec)
    if success is not None:
        name, label = success
        expected = outlook[name]
        if isinstance(expected, DiscreteOutlook):
            return label_nll(expected, outcomes[name], label)
    names = list(codec.heads)
    return torch.stack([_nll(outlook, outcomes, codec, name) for name in names]).mean(0)


def decision_loss(outlook: Outlook, part: DataPart, codec: TargetCodec) -> float:
    """What models are chosen by: mean `row_nll`, and how well successes are told from rivals."""
    loss = float(row_nll(outlook, part.outcomes, codec).mean())
    success = success_label(codec)
    if success is None:
        return loss
    name, label = success
    expected, succeeded_N = outlook[name], part.outcomes[name] == label
    choices = count_choices(succeeded_N, part.states)
    if isinstance(expected, DiscreteOutlook) and choices >= MIN_CHOICES:
        log_odds_N = expected.log_odds(label)
        loss += CHOICE_WEIGHT * float(choice_nll(log_odds_N, succeeded_N, part.states))
    return loss


def success_label(codec: TargetCodec) -> tuple[str, int] | None:
    """Target and position of the label that the spec calls success, if that target varies."""
    success = codec.spec.success
    if success is None or success[0] not in codec.heads:
        return None
    return success[0], codec.labels(success[0]).index(success[1])


def label_nll(expected: DiscreteOutlook, label_N: Tensor, label: int) -> Tensor:
    """Negative log-likelihood of whether *label* came true, ``[N]``."""
    probability_N = expected.probabilities[:, label]
    happened_N = (label_N == label).long()
    return categorical_nll(torch.stack([1.0 - probability_N, probability_N], dim=1), happened_N)


def measure(outlook: Outlook, outcomes: Outcomes, codec: TargetCodec) -> dict[str, float]:
    """Held-out metrics, overall and per target (``NAME.metric``).

    ``nll_skill`` is the gain over the base rate in nats, of what `row_nll` judges by: above zero
    is better than not looking at the input. ``ece`` and ``coverage_90`` (0.9 is right) say
    whether the model knows what it does not know; ``auroc`` is of the success label, NaN where
    the rows hold only one outcome.
    """
    rows = len(next(iter(outcomes.values())))
    base = base_outlook(codec, rows)
    nll_N = row_nll(outlook, outcomes, codec)
    base_N = row_nll(base, outcomes, codec)
    metrics = {"nll": float(nll_N.mean()), PRIMARY: float((base_N - nll_N).mean())}
    for name in codec.heads:
        gain_N = _nll(base, outcomes, codec, name) - _nll(outlook, outcomes, codec, name)
        metrics[f"{name}.nll_skill"] = float(gain_N.mean())
        expected = outlook[name]
        if isinstance(expected, DiscreteOutlook):
            metrics |= _discrete_metrics(expected, outcomes[name], codec, name)
        else:
            metrics |= _box_metrics(expected, outcomes[name], codec, name)
    return metrics


def _nll(outlook: Outlook, outcomes: Outcomes, codec: TargetCodec, name: str) -> Tensor:
    expected = outlook[name]
    if isinstance(expected, DiscreteOutlook):
        return categorical_nll(expected.probabilities, outcomes[name])
    kept = torch.tensor(codec.standardisers[name].kept)
    return gaussian_nll(expected.mean, expected.variance, outcomes[name])[:, kept].mean(1)


def _discrete_metrics(
    expected: DiscreteOutlook, label_N: Tensor, codec: TargetCodec, name: str
) -> dict[str, float]:
    success = success_label(codec)
    if success is not None and success[0] == name:
        index = success[1]
        probability_N, happened_N = expected.probabilities[:, index], label_N == index
        metrics = {f"{name}.auroc": auroc(probability_N, happened_N)}
    else:
        probability_N, likeliest_N = expected.probabilities.max(dim=1)
        happened_N = likeliest_N == label_N
        metrics = {f"{name}.accuracy": float(happened_N.double().mean())}
    metrics[f"{name}.ece"] = expected_calibration_error(probability_N, happened_N)
    return metrics


def _box_metrics(
    expected: BoxOutlook, value_NC: Tensor, codec: TargetCodec, name: str
) -> dict[str, float]:
    kept = torch.tensor(codec.standardisers[name].kept)
    mean, variance, value = expected.mean[:, kept], expected.variance[:, kept], value_NC[:, kept]
    return {
        f"{name}.rmse": float((value - mean).square().mean().sqrt()),
        f"{name}.coverage_90": coverage_90(mean, variance, value),
    }
