"""The publication gate: compares the candidate with the base rate and the model in use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import Module

from infrastructure.trajectories.split import Part
from infrastructure.world_model import ModelFileError, WorldModel
from infrastructure.world_model.distributions import TargetDistributions
from infrastructure.world_model.distributions.metrics import clustered_standard_error
from infrastructure.world_model.fitting import (
    Family,
    FittedModel,
    TrainingData,
    fit_candidates,
    predict_all,
    select_family,
)
from infrastructure.world_model.fitting.fitted_model import shrunk_weights
from infrastructure.world_model.fitting.rare_success import (
    FEW_SUCCESSES,
    FEWEST_OTHERS,
    count_others,
    deciding_rows,
    rounded_up,
)
from infrastructure.world_model.fitting.scoring import (
    PRIMARY,
    BaseRateScores,
    held_out_base_rate,
    measure,
    row_nll,
    target_nlls,
)
from infrastructure.world_model.model_files import INDEX, BuildNetwork
from infrastructure.world_model_agent.cross_validation import cross_validate
from infrastructure.world_model_agent.off_policy import (
    LoggedDecisions,
    OffPolicyCheck,
    check_off_policy,
)
from infrastructure.world_model_agent.prior import Prior, PriorError
from infrastructure.world_model_agent.rollout_check import check_rollouts

Z_95_ONE_SIDED = 1.645
"""Standard errors by which the candidate must beat the base rate: one-sided 95 % confidence."""

Z_FIRST_OF_EXPLORER = 1.0
"""The same for the first model of an agent that explores; if the test groups are too few to show
it, a cross-validation of the linear model over all groups may. Waiting for more data costs the gain
of each decision meanwhile; a wrong model costs until the next run, as its choices are tried out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GateDecision:
    """Decision of the gate.

    Attributes:
        published: Whether the candidate replaces the published model.
        reason: Explanation in one line, for the operator.
        candidate: Best of the three families.
        metrics: Metrics of the candidate on the test groups, and those it was compared with.
        beaten_prior: Digest of the prior that it was compared with and beat; else empty.
    """

    published: bool
    reason: str
    candidate: FittedModel
    metrics: Mapping[str, float]
    beaten_prior: str = ""


def gate_publication(
    data: TrainingData,
    ensemble: Module,
    published: Path,
    build_network: BuildNetwork,
    prior: Path | None = None,
    decisions: LoggedDecisions | None = None,
) -> GateDecision:
    """Select the candidate on the calibration groups and test it on the test groups.

    The candidate must beat the base rate, the twin of the prior, and the published model, unless
    that one was never compared with this prior and so is not in use. What its choices would have
    been worth is estimated from the logged decisions of the test groups.

    Args:
        published: Folder of the published model; may be empty or damaged.
        build_network: Function that builds the network whose weights are saved there.
        prior: Folder of the prior that ships with the agent, if one does.
        decisions: The agent's log, and what the estimate must show; None for none.
    """
    candidates = fit_candidates(data, ensemble)
    predicted = predict_all(candidates, data.test.features)
    base = held_out_base_rate(data)
    is_first = prior is None and _is_first_of_explorer(published, data)
    scored = _score(data, predicted, base.rows, select_family(candidates, data))
    needed = Z_FIRST_OF_EXPLORER if is_first else Z_95_ONE_SIDED
    rare = _undecided(data, predicted[scored.family], base, needed)
    beats_base_rate = not rare and scored.skill > needed * scored.error
    gain = f"by {scored.skill:.4f} nats on held-out groups"
    checked = cross_validate(data) if is_first and not beats_base_rate and not rare else None
    if checked is not None and checked.gain > needed * checked.error:
        weights = shrunk_weights((0.0, 1.0), checked.gain / checked.error)
        linear = replace(candidates["linear"], weights=dict.fromkeys(data.codec.heads, weights))
        candidates["linear"] = linear.recalibrated(data.calibration.transitions)
        predicted = predict_all(candidates, data.test.features)
        scored, beats_base_rate = _score(data, predicted, base.rows, "linear"), True
        gain = f"by {checked.gain:.4f} nats in a cross-validation over {checked.groups} groups"
    family, candidate, nll_N = scored.family, candidates[scored.family], scored.nll_N
    measured = {
        name: measure(prediction, data.test.outcomes, data.codec, base)
        for name, prediction in predicted.items()
    }
    metrics = {
        **measured[family],
        **{f"{name}.{PRIMARY}": each[PRIMARY] for name, each in measured.items()},
        f"{PRIMARY}_standard_error": scored.error,
        "nll_standard_error": clustered_standard_error(nll_N, data.test.groups),
        "nll_deviation": float(nll_N.std()),
    }
    if not beats_base_rate:
        verdict = rare or "does not beat the base rate on held-out groups"
        reason = (
            f"the best candidate ({family}) {verdict}: {scored.skill:+.4f} nats with standard "
            f"error {scored.error:.4f}, "
            f"{_what_would_decide(data, scored.skill, scored.error)}"
        )
        return GateDecision(published=False, reason=reason, candidate=candidate, metrics=metrics)
    rollout = check_rollouts(candidate, published, data.test.transitions, build_network)
    metrics |= rollout.metrics
    if rollout.problem:
        return GateDecision(
            published=False, reason=rollout.problem, candidate=candidate, metrics=metrics
        )
    shipped, rivals = None, list[_Rival]()
    if prior is not None:
        try:
            shipped = Prior.open(prior)
            rivals.append(_compare_prior(data, nll_N, shipped, build_network))
        except PriorError as problem:
            shipped = None
            rivals.append(_Rival(name="prior", problem=str(problem)))
    rivals.append(_compare_published(data, nll_N, published, build_network, shipped))
    for rival in rivals:
        metrics |= rival.metrics
    off_policy = OffPolicyCheck()
    if decisions is not None:
        in_use = _load_comparable(data, published, build_network, shipped)
        off_policy = check_off_policy(decisions, frozenset(data.test.groups), candidate, in_use)
        metrics |= off_policy.metrics
    lost = [rival for rival in rivals if not rival.is_beaten]
    if lost or off_policy.problem:
        reasons = [f"not better than {rival.text}" for rival in lost]
        reasons += [off_policy.problem or off_policy.text]
    else:
        reasons = [
            f"{family} beats the base rate {gain}",
            *(rival.text for rival in rivals),
            off_policy.text,
        ]
    is_published = not lost and not off_policy.problem
    return GateDecision(
        published=is_published,
        reason="; ".join(filter(None, reasons)),
        candidate=candidate,
        metrics=metrics,
        beaten_prior=shipped.digest if shipped is not None and is_published else "",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Score:
    """How a family predicts the test groups.

    Attributes:
        nll_N: See `row_nll`.
        skill: Mean gain over the base rate in nats.
        error: Its standard error.
    """

    family: Family
    nll_N: Tensor
    skill: float
    error: float


def _score(
    data: TrainingData,
    predicted: Mapping[Family, TargetDistributions],
    base_N: Tensor,
    family: Family,
) -> _Score:
    nll_N = row_nll(predicted[family], data.test.outcomes, data.codec)
    gain_N = base_N - nll_N
    error = clustered_standard_error(gain_N, data.test.groups)
    return _Score(family=family, nll_N=nll_N, skill=float(gain_N.mean()), error=error)


def _undecided(
    data: TrainingData, predicted: TargetDistributions, base: BaseRateScores, needed: float
) -> str:
    """Why a gain over the base rate proves nothing; empty if it does, or there is none.

    Gains of a label that hardly occurs in the test groups do not count.

    Args:
        needed: Standard errors that the gain of the other targets must exceed.
    """
    few = {
        name: others
        for name, outcome_N in _deciding_labels(data, "test").items()
        if (others := count_others(outcome_N)) < FEWEST_OTHERS
    }
    if not few:
        return ""
    nlls = target_nlls(predicted, data.test.outcomes, data.codec)
    rest = [] if data.codec.success_label else [name for name in nlls if name not in few]
    if rest:
        gain_N = torch.stack([base.targets[name] - nlls[name] for name in rest]).mean(0)
        error = clustered_standard_error(gain_N, data.test.groups)
        if float(gain_N.mean()) > needed * error:
            return ""
    name, others = min(few.items(), key=lambda each: each[1])
    return (
        f"cannot be told from the base rate on held-out groups, where {others} of "
        f"{len(data.test.transitions)} rows have another {name} than the commonest (at least "
        f"{FEWEST_OTHERS} must)"
    )


def _deciding_labels(data: TrainingData, part: Part) -> dict[str, Tensor]:
    """Labels of *part* that `row_nll` scores: whether it was a success, or all targets'."""
    outcomes, success = data.parts[part].outcomes, data.codec.success_label
    if success is not None:
        return {success[0]: outcomes[success[0]] == success[1]}
    return {name: outcomes[name] for name in data.codec.heads if data.codec.is_discrete(name)}


def _load_comparable(
    data: TrainingData, published: Path, build_network: BuildNetwork, prior: Prior | None
) -> FittedModel | None:
    """The model in use if it ranks the same fields; of a prior, the one that answers."""
    try:
        model = WorldModel.load(published, build_network)
        if prior is not None and model.beaten_prior != prior.digest:
            model = prior.load("twin", data.spec, build_network)
    except (FileNotFoundError, ModelFileError, PriorError):
        return None
    fitted = model.fitted_model
    return fitted if fitted is not None and fitted.spec == data.spec else None


def _is_first_of_explorer(published: Path, data: TrainingData) -> bool:
    """Whether nothing is published yet, and choices of the test groups were drawn at random."""
    if (published / INDEX).exists():
        return False
    return any((row.propensity or 1.0) < 1.0 for row in data.test.transitions)


def _what_would_decide(data: TrainingData, skill: float, error: float) -> str:
    """How little the test groups hold, and about how much data would decide.

    The standard error falls with the square root of the data. A few successes tell nothing.
    """
    rows, groups = len(data.test.transitions), len(set(data.test.groups))
    recorded = sum(len(part.transitions) for part in data.parts.values())
    seen, needed = f"{rows:,} test transitions in {groups:,} groups", 0.0
    if skill > 0.0 and math.isfinite(error):
        needed = recorded * (Z_95_ONE_SIDED * error / skill) ** 2
    labels = {part: _deciding_labels(data, part) for part in data.parts}
    if data.codec.success_label is not None:
        tested = int(next(iter(labels["test"].values())).sum())
        seen = f"{tested} success{'' if tested == 1 else 'es'} in {seen}"
    for name, label_N in labels["test"].items():
        others = count_others(torch.cat([each[name] for each in labels.values()]))
        if count_others(label_N) < FEW_SUCCESSES and others:
            needed = max(needed, deciding_rows(others, recorded, rows / recorded))
    if not needed:
        return f"from {seen}"
    return (
        f"from {seen}; at this rate about {rounded_up(needed):,} transitions would decide "
        f"({recorded:,} are recorded)"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rival:
    """A model that the candidate was compared with, or why it was not.

    Attributes:
        name: First part of the names of its metrics.
        title: Name for people.
        candidate_nll, nll: Mean negative log-likelihood of the candidate and of this model on the
            same rows; None if they could not be compared.
        problem: Why they could not be compared.
        stands: Whether it stays in use if they could not be compared.
    """

    name: str
    title: str = ""
    candidate_nll: float = math.nan
    nll: float | None = None
    problem: str = ""
    stands: bool = False

    @property
    def is_beaten(self) -> bool:
        """Whether the candidate may replace it."""
        return not self.stands if self.nll is None else self.candidate_nll < self.nll

    @property
    def text(self) -> str:
        """The comparison, for people."""
        if self.nll is None:
            return f"{self.title}: {self.problem}" if self.stands else self.problem
        numbers = f"negative log-likelihood {self.candidate_nll:.4f} against {self.nll:.4f}"
        return f"{numbers} of {self.title}" if self.is_beaten else f"{self.title}: {numbers}"

    @property
    def metrics(self) -> dict[str, float]:
        """Its likelihood and the candidate's gain, if they were compared."""
        if self.nll is None:
            return {}
        return {
            f"{self.name}.nll": self.nll,
            f"{self.name}.nll_gain": self.nll - self.candidate_nll,
        }


def _compare_published(
    data: TrainingData,
    nll_N: Tensor,
    published: Path,
    build_network: BuildNetwork,
    prior: Prior | None,
) -> _Rival:
    """Compare with the published model on the test groups; no run has trained on those."""
    try:
        model = WorldModel.load(published, build_network)
    except FileNotFoundError:
        return _Rival(name="in_use", problem="no model was in use" if prior is None else "")
    except ModelFileError as error:
        return _Rival(name="in_use", problem=f"the model in use is unreadable ({error})")
    if prior is not None and model.beaten_prior != prior.digest:
        return _Rival(name="in_use", problem="the published model was not compared with this prior")
    fitted = model.fitted_model
    if fitted is None or fitted.spec != data.spec:
        return _Rival(
            name="in_use", problem="the model in use was trained for other fields or another split"
        )
    predicted = fitted.predict_transitions(data.test.transitions)
    nll = float(row_nll(predicted, data.test.outcomes, data.codec).mean())
    if not math.isfinite(nll):
        problem = "the likelihood of the model in use is not finite"
        return _Rival(name="in_use", problem=problem)
    return _Rival(
        name="in_use", title="the model in use", candidate_nll=float(nll_N.mean()), nll=nll
    )


def _compare_prior(
    data: TrainingData, nll_N: Tensor, prior: Prior, build_network: BuildNetwork
) -> _Rival:
    """Compare with the prior's twin on the test groups that the twin has not seen.

    The twin is calibrated again on the calibration groups, so that a candidate does not win by
    the success rate of its own data alone.

    Raises:
        PriorError: The twin cannot be loaded.
    """
    fitted = prior.load("twin", data.spec, build_network).fitted_model
    unseen = [row for row, group in enumerate(data.test.groups) if group not in prior.twin_groups]
    title = "the prior that ships with the agent"
    if fitted is None or not unseen:
        problem = "nothing can be compared, because it has seen every test group"
        return _Rival(name="prior", title=title, problem=problem, stands=True)
    twin = fitted.recalibrated(data.calibration.transitions)
    transitions = [data.test.transitions[row] for row in unseen]
    outcomes = data.codec.outcomes(transitions)
    nll = float(row_nll(twin.predict_transitions(transitions), outcomes, data.codec).mean())
    if not math.isfinite(nll):
        return _Rival(name="prior", problem=f"the likelihood of {title} is not finite")
    candidate_nll = float(nll_N[torch.tensor(unseen)].mean())
    return _Rival(name="prior", title=title, candidate_nll=candidate_nll, nll=nll)
