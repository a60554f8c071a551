"""The publication gate's off-policy estimate: what the candidate's choices would have been worth.

Read from the agent's log of decisions, on groups that no model was trained on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from infrastructure.agent_contract.transition import Discrete, TransitionSpec
from infrastructure.decisions.logged import LoggedDecision, logged_decisions
from infrastructure.decisions.off_policy import (
    Estimate,
    Floats,
    LoggedRewards,
    OffPolicyEstimator,
    Positions,
    TargetPolicy,
    cross_fitted,
    greedy,
    shown,
)
from infrastructure.trajectories.schema import input_problem
from infrastructure.world_model.distributions import BoxDistribution
from infrastructure.world_model.fitting import FittedModel
from infrastructure.world_model.prediction import improvement_target, success_probabilities

OffPolicyGate = Literal["", "not_worse", "better"]
"""What the estimate must show: nothing, no loss, or a gain over the model in use."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedDecisions:
    """What the estimate is read from, and what it must show.

    Attributes:
        logs: Folders of the agent's logs of decisions; may be missing.
        gate: See `OffPolicyGate`.
    """

    logs: Sequence[Path]
    gate: OffPolicyGate = ""


MOST_DECISIONS = 20_000
MOST_ACTIONS = 400_000  # of these decisions together
_TOGETHER = 4096  # actions that are scored in one pass


@dataclass(frozen=True, kw_only=True, slots=True)
class OffPolicyCheck:
    """Result of the estimate.

    Attributes:
        text: Estimate for people; empty if nothing with propensities was logged.
        problem: Why the candidate is not published; empty if the gate passed or none is asked for.
        metrics: Estimates, named ``off_policy.*``.
    """

    text: str = ""
    problem: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)


def check_off_policy(
    logged: LoggedDecisions,
    test_groups: Collection[str],
    candidate: FittedModel,
    in_use: FittedModel | None,
) -> OffPolicyCheck:
    """Estimate the candidate's first choices against those of the model in use.

    Without a model in use, against the first action of the agent's own order. The worth of a
    decision is its reward; where no decision has one, whether the success label came. Both choose
    among the actions that were offered. A decision counts if an exploring policy made it, or if it
    offered one action only.

    Args:
        test_groups: Groups on which neither model was trained.
    """
    gate = logged.gate
    sample = _Sample.of(_usable(logged.logs, test_groups, candidate.spec), candidate.spec)
    if sample is None:
        problem = "no decision in the test groups has a propensity below 1"
        return OffPolicyCheck(problem=_refused(gate, problem) if gate == "better" else "")
    first = _Choices.of(candidate, sample.decisions)
    chosen_N = [decision.chosen for decision in sample.decisions]
    own_N = np.zeros(len(chosen_N), dtype=np.int64)
    rival = _Choices.of(in_use, sample.decisions).best_N if in_use is not None else own_N
    asked = [first.features(first.best_N), first.features(rival)]
    q, q_first, q_rival = cross_fitted(
        first.features(chosen_N), sample.reward_N, sample.groups, asked
    )
    estimator = OffPolicyEstimator(
        LoggedRewards(
            reward_N=sample.reward_N,
            propensity_N=sample.propensity_N,
            predicted_N=q,
            groups=sample.groups,
        )
    )
    policy = TargetPolicy(probability_N=greedy(first.best_N, chosen_N), predicted_N=q_first)
    other = TargetPolicy(probability_N=greedy(rival, chosen_N), predicted_N=q_rival)
    value, gain = estimator.value(policy), estimator.difference(policy, other)
    against = "the agent's own order" if in_use is None else "the model in use"
    share = float(np.mean(first.best_N == rival))
    text = (
        f"off-policy estimate on {len(chosen_N):,} decisions, in {sample.worth}: {shown(value)}, "
        f"{_gain_text(gain, against, share)}"
    )
    metrics = {
        "off_policy.decisions": float(len(chosen_N)),
        "off_policy.logged": float(sample.reward_N.mean()),
        "off_policy.agreement": share,
        **_metrics("off_policy.value", value),
        **_metrics("off_policy.gain", gain),
    }
    return OffPolicyCheck(text=text, problem=_gate_problem(gate, gain, against), metrics=metrics)


def _gain_text(gain: Estimate, against: str, share: float) -> str:
    if share == 1.0:
        return f"its choices are those of {against}"
    return f"its gain over {against} {shown(gain)}"


def _metrics(name: str, estimate: Estimate) -> dict[str, float]:
    """The estimate; its values only where the sample suffices."""
    metrics = {f"{name}.effective_sample_size": estimate.effective_sample_size}
    if estimate.is_enough:
        robust = estimate.doubly_robust
        metrics |= {
            name: robust.value,
            f"{name}.low": robust.low,
            f"{name}.high": robust.high,
            f"{name}.snips": estimate.snips.value,
        }
    if estimate.clipped_share:
        metrics |= {
            f"{name}.clipped_share": estimate.clipped_share,
            f"{name}.clipping_bias": estimate.clipping_bias,
        }
    return metrics


def _gate_problem(gate: OffPolicyGate, gain: Estimate, against: str) -> str:
    interval = gain.doubly_robust
    if gate == "better" and not (gain.is_enough and interval.low > 0.0):
        return _refused(gate, f"its gain over {against}: {shown(gain)}")
    if gate == "not_worse" and gain.is_enough and interval.high < 0.0:
        return _refused(gate, f"its gain over {against}: {shown(gain)}")
    return ""


def _refused(gate: OffPolicyGate, why: str) -> str:
    return f"the off-policy gate ({gate}) refuses the candidate: {why}"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sample:
    """Usable decisions and the worth of each."""

    decisions: Sequence[LoggedDecision]
    reward_N: Floats
    worth: str

    @classmethod
    def of(cls, usable: Iterator[LoggedDecision], spec: TransitionSpec) -> _Sample | None:
        """The newest usable decisions; None if none of them explored."""
        newest = deque[LoggedDecision](maxlen=MOST_DECISIONS)
        actions = 0
        for decision in usable:
            if len(newest) == MOST_DECISIONS:
                actions -= len(newest.popleft().actions)
            newest.append(decision)
            actions += len(decision.actions)
            while actions > MOST_ACTIONS:
                actions -= len(newest.popleft().actions)
        if not any((decision.propensity or 1.0) < 1.0 for decision in newest):
            return None
        if any(decision.reward is not None for decision in newest):
            rewards, worth = [decision.reward or 0.0 for decision in newest], "reward"
        elif spec.success is not None:
            rewards, worth = [_succeeded(decision, spec) for decision in newest], "successes"
        else:
            return None
        reward_N = np.asarray(rewards, dtype=np.float64)
        return cls(decisions=list(newest), reward_N=reward_N, worth=worth)

    @property
    def propensity_N(self) -> Floats:
        """Propensity of each decision."""
        return np.asarray([decision.propensity for decision in self.decisions], dtype=np.float64)

    @property
    def groups(self) -> list[str]:
        """Group of each decision."""
        return [decision.group for decision in self.decisions]


def _usable(
    logs: Sequence[Path], groups: Collection[str], spec: TransitionSpec
) -> Iterator[LoggedDecision]:
    known = frozenset(groups)
    for decision in chain.from_iterable(map(logged_decisions, logs)):
        if decision.group not in known or decision.propensity is None:
            continue
        explored = decision.propensity < 1.0 or len(decision.actions) == 1
        if explored and not any(
            input_problem(spec, decision.observation, action) for action in decision.actions
        ):
            yield decision


def _succeeded(decision: LoggedDecision, spec: TransitionSpec) -> float:
    name, label = spec.success or ("", "")
    value = decision.next_observation.get(name)
    target = spec.targets[name]
    if isinstance(value, bool) and isinstance(target, Discrete):
        value = str(value).lower()
    return float(value == label)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Choices:
    """How a model scores the actions of decisions.

    Attributes:
        best_N: Position of the action that it ranks first.
        scores_RF: Its scores of all actions, decision after decision.
        start_N: First row of each decision.
    """

    best_N: NDArray[np.int64]
    scores_RF: Floats
    start_N: NDArray[np.int64]

    @classmethod
    def of(cls, model: FittedModel, decisions: Sequence[LoggedDecision]) -> _Choices:
        """Score all actions of *decisions*; equal to `score_actions`, in large batches."""
        parts, pending, rows = list[Floats](), list[LoggedDecision](), 0
        for decision in decisions:
            pending.append(decision)
            rows += len(decision.actions)
            if rows >= _TOGETHER:
                parts.append(_scores(model, pending))
                pending, rows = [], 0
        if pending:
            parts.append(_scores(model, pending))
        scores_RF = np.concatenate(parts)
        counts = [len(decision.actions) for decision in decisions]
        start_N = np.cumsum([0, *counts[:-1]])
        best = [
            max(range(count), key=lambda position: (*scores_RF[start + position], -position))
            for start, count in zip(start_N, counts, strict=True)
        ]
        return cls(best_N=np.asarray(best), scores_RF=scores_RF, start_N=start_N)

    def features(self, positions_N: Positions) -> Floats:
        """Scores of one action of each decision."""
        features: Floats = self.scores_RF[self.start_N + np.asarray(positions_N)]
        return features


@torch.inference_mode()
def _scores(model: FittedModel, decisions: Sequence[LoggedDecision]) -> Floats:
    """Success chance and mean improvement of all actions, as far as the spec has them."""
    spec = model.spec
    observations = [decision.observation for decision in decisions for _ in decision.actions]
    actions = [action for decision in decisions for action in decision.actions]
    predicted = model.predict(model.encoder.encode(observations, actions))
    columns = list[Sequence[float]]()
    if spec.success is not None:
        columns.append(success_probabilities(spec, predicted))
    target = improvement_target(spec)
    if target is not None and isinstance(gain := predicted[target], BoxDistribution):
        columns.append(gain.mean[:, 0].tolist())
    return np.asarray(columns, dtype=np.float64).reshape(len(columns), len(actions)).T
