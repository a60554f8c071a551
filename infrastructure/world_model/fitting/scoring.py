"""Scores predictive distributions against outcomes: held-out metrics and selection criterion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from infrastructure.trajectories.encoding import Outcomes, TargetCodec
from infrastructure.world_model.distributions import (
    BoxDistribution,
    Calibration,
    DiscreteDistribution,
    TargetDistribution,
    TargetDistributions,
    base_rate_distributions,
)
from infrastructure.world_model.distributions.box_calibration import fit_scale_and_tail
from infrastructure.world_model.distributions.calibration import tempered_nll
from infrastructure.world_model.distributions.metrics import (
    auroc,
    categorical_nll,
    clustered_standard_error,
    coverage,
    expected_calibration_error,
)
from infrastructure.world_model.fitting.ranking_loss import (
    MIN_RANKABLE_STATES,
    RANKING_WEIGHT,
    ranking_nlls,
)
from infrastructure.world_model.fitting.rare_success import FEWEST_OTHERS, count_others
from infrastructure.world_model.fitting.training_data import DataPart, TrainingData

PRIMARY = "nll_skill"


def row_nll(
    predicted: TargetDistributions,
    outcomes: Outcomes,
    codec: TargetCodec,
    known: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """Return the negative log-likelihood of each row in nats, ``[N]`` float64.

    If the spec names a ``success`` label, it is the likelihood of whether that label occurred:
    candidates are ranked by its probability, so neither the distinction between failures nor a
    rare outlier of another target may decide what is published. Otherwise it is the mean over all
    targets. It is computed in recorded units, so that models with different statistics compare.
    *codec* determines which targets and dimensions vary, and so count.

    Args:
        known: Negative log-likelihood of each varying target, where it is at hand.
    """
    success = codec.success_label
    if success is not None:
        name, label = success
        distribution = predicted[name]
        if isinstance(distribution, DiscreteDistribution):
            probability_N = distribution.probabilities[:, label]
            binary_N2 = torch.stack([1.0 - probability_N, probability_N], dim=1)
            return categorical_nll(binary_N2, (outcomes[name] == label).long())
    nlls = known or target_nlls(predicted, outcomes, codec)
    return torch.stack(list(nlls.values())).mean(0)


def expected_nll(predicted: TargetDistributions, codec: TargetCodec) -> Tensor:
    """Return the mean of `row_nll` if outcomes followed *predicted*, ``[N]`` float64.

    It is the entropy in nats of what `row_nll` scores.
    """
    success = codec.success_label
    if success is not None:
        distribution = predicted[success[0]]
        if isinstance(distribution, DiscreteDistribution):
            chance_N = distribution.probabilities[:, success[1]]
            entropy_N: Tensor = torch.special.entr(chance_N) + torch.special.entr(1.0 - chance_N)
            return entropy_N
    entropies = []
    for name in codec.heads:
        distribution = predicted[name]
        if isinstance(distribution, DiscreteDistribution):
            entropies.append(torch.special.entr(distribution.probabilities).sum(1))
        else:
            select_kept = codec.standardisers[name].select_kept
            entropies.append(select_kept(distribution.entropy()).mean(1))
    return torch.stack(entropies).mean(0)


def selection_loss(predicted: TargetDistributions, part: DataPart, codec: TargetCodec) -> float:
    """Return the criterion of model selection: mean `row_nll` plus weighted `ranking_nll`."""
    loss = float(row_nll(predicted, part.outcomes, codec).mean())
    success = codec.success_label
    if success is None:
        return loss
    return loss + float(_ranking_share(predicted[success[0]], part, codec, success[0]).mean())


def target_loss(
    distribution: TargetDistribution, name: str, part: DataPart, codec: TargetCodec
) -> float:
    """Return the criterion that chooses the blend of target *name*: its likelihood once calibrated.

    Args:
        distribution: Predictions of *part*, not calibrated.
    """
    loss_N = _calibrated_nll(distribution, name, part, codec)
    return float((loss_N + _ranking_share(distribution, part, codec, name)).mean())


def evidence(
    distribution: TargetDistribution,
    base: TargetDistribution,
    name: str,
    part: DataPart,
    codec: TargetCodec,
) -> float:
    """Return the gain of target *name* over the base rate, in standard errors of that gain.

    Both are scored as by `target_loss`. 0 if fewer than `FEWEST_OTHERS` rows have another label
    than the commonest: a few that the model is sure of by chance are many standard errors.
    """
    if codec.is_discrete(name) and count_others(part.outcomes[name]) < FEWEST_OTHERS:
        return 0.0
    losses = [
        _calibrated_nll(each, name, part, codec) + _ranking_share(each, part, codec, name)
        for each in (base, distribution)
    ]
    gain_N = losses[0] - losses[1]
    step = -(-len(part.groups) // len(gain_N))
    error = clustered_standard_error(gain_N, part.groups[::step])
    return float(gain_N.mean()) / max(error, 1e-12)


def _calibrated_nll(
    distribution: TargetDistribution, name: str, part: DataPart, codec: TargetCodec
) -> Tensor:
    """Negative log-likelihood, ``[N]``, with scale and tail or temperature fitted to *part*.

    Of many rows, evenly spaced ones are taken.
    """
    outcome = part.outcomes[name]
    if isinstance(distribution, BoxDistribution):
        nll_NC = fit_scale_and_tail(distribution, outcome)
        return codec.standardisers[name].select_kept(nll_NC).mean(1)
    return tempered_nll(distribution, outcome)


def _ranking_share(
    distribution: TargetDistribution, part: DataPart, codec: TargetCodec, name: str
) -> Tensor:
    """Weighted `ranking_nll` of the success target, as shares of the rows, whose mean it is.

    The first row of a state has the state's share. 0, ``[1]``, for other targets, and with few
    rankable states.
    """
    success, none = codec.success_label, torch.zeros(1, dtype=torch.float64)
    if success is None or name != success[0] or not isinstance(distribution, DiscreteDistribution):
        return none
    succeeded_N, state_N = part.outcomes[success[0]] == success[1], part.states
    nll_S, rankable_S = ranking_nlls(distribution.log_odds(success[1]), succeeded_N, state_N)
    rankable = int(rankable_S.sum())
    if rankable < MIN_RANKABLE_STATES:
        return none
    first_S = torch.full_like(rankable_S, len(state_N), dtype=torch.int64)
    first_S = first_S.scatter_reduce(0, state_N, torch.arange(len(state_N)), "amin")
    share_N = torch.zeros(len(state_N), dtype=torch.float64)
    share_N[first_S[rankable_S]] = nll_S[rankable_S].double()
    return share_N * (RANKING_WEIGHT * len(state_N) / rankable)


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseRateScores:
    """Scores of the base rates on one set of rows.

    Attributes:
        rows: `row_nll`, ``[N]`` float64.
        targets: Negative log-likelihood of each varying target, ``[N]`` float64.
    """

    rows: Tensor
    targets: Mapping[str, Tensor]


def base_rate_scores(
    outcomes: Outcomes, codec: TargetCodec, calibration: Calibration | None = None
) -> BaseRateScores:
    """Score the base rates against *outcomes*; calibrated, if *calibration* is given."""
    base = base_rate_distributions(codec, len(next(iter(outcomes.values()))))
    if calibration is not None:
        base = calibration.apply(base, codec)
    targets = target_nlls(base, outcomes, codec)
    return BaseRateScores(rows=row_nll(base, outcomes, codec, targets), targets=targets)


def held_out_base_rate(data: TrainingData) -> BaseRateScores:
    """Score the base rates against the test groups, with numbers calibrated as a model's are.

    So a model has to beat the base rate by what it reads from its inputs: a better scale and
    heavier tails alone give no skill.
    """
    part, codec = data.calibration, data.codec
    base = base_rate_distributions(codec, len(part.features))
    boxes = {name: each for name, each in base.items() if isinstance(each, BoxDistribution)}
    calibration = Calibration.fit(boxes, part.outcomes, codec, part.groups)
    return base_rate_scores(data.test.outcomes, codec, calibration)


def measure(
    predicted: TargetDistributions,
    outcomes: Outcomes,
    codec: TargetCodec,
    base: BaseRateScores | None = None,
) -> dict[str, float]:
    """Compute held-out metrics, overall and per target (``NAME.metric``).

    ``nll_skill`` is the gain in `row_nll` over the base rate in nats; above zero is better than
    ignoring the input. ``ece`` and ``coverage_90`` (0.9 is right) measure calibration. ``auroc``
    is that of the success label, NaN if the rows contain only one outcome.

    Args:
        base: `base_rate_scores` of *outcomes*, where they are at hand.
    """
    base = base or base_rate_scores(outcomes, codec)
    nlls = target_nlls(predicted, outcomes, codec)
    nll_N = row_nll(predicted, outcomes, codec, nlls)
    metrics = {"nll": float(nll_N.mean()), PRIMARY: float((base.rows - nll_N).mean())}
    for name in codec.heads:
        metrics[f"{name}.nll_skill"] = float((base.targets[name] - nlls[name]).mean())
        distribution = predicted[name]
        if isinstance(distribution, DiscreteDistribution):
            metrics |= _discrete_metrics(distribution, outcomes[name], codec, name)
        else:
            metrics |= _box_metrics(distribution, outcomes[name], codec, name)
    return metrics


def target_nlls(
    predicted: TargetDistributions, outcomes: Outcomes, codec: TargetCodec
) -> dict[str, Tensor]:
    """Negative log-likelihood of each varying target, ``[N]`` float64."""
    return {name: _nll(predicted, outcomes, codec, name) for name in codec.heads}


def _nll(
    predicted: TargetDistributions, outcomes: Outcomes, codec: TargetCodec, name: str
) -> Tensor:
    distribution = predicted[name]
    if isinstance(distribution, DiscreteDistribution):
        return categorical_nll(distribution.probabilities, outcomes[name])
    return codec.standardisers[name].select_kept(distribution.nll(outcomes[name])).mean(1)


def _discrete_metrics(
    distribution: DiscreteDistribution, label_N: Tensor, codec: TargetCodec, name: str
) -> dict[str, float]:
    success = codec.success_label
    if success is not None and success[0] == name:
        index = success[1]
        probability_N, happened_N = distribution.probabilities[:, index], label_N == index
        metrics = {f"{name}.auroc": auroc(probability_N, happened_N)}
    else:
        probability_N, likeliest_N = distribution.probabilities.max(dim=1)
        happened_N = likeliest_N == label_N
        metrics = {f"{name}.accuracy": float(happened_N.double().mean())}
    metrics[f"{name}.ece"] = expected_calibration_error(probability_N, happened_N)
    return metrics


def _box_metrics(
    distribution: BoxDistribution, value_NC: Tensor, codec: TargetCodec, name: str
) -> dict[str, float]:
    select_kept = codec.standardisers[name].select_kept
    mean_NK, value_NK = select_kept(distribution.mean), select_kept(value_NC)
    half_width_NK = select_kept(distribution.half_width_90())
    return {
        f"{name}.rmse": float((value_NK - mean_NK).square().mean().sqrt()),
        f"{name}.coverage_90": coverage(mean_NK, half_width_NK, value_NK),
    }
