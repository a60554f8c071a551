"""Compares what came true with what the published models predict of it.

Outcomes and transitions wait here until the next report; then a bounded number of each agent's is
scored, in one pass. So the comparison delays no answer, and costs some milliseconds a second. Those
of an agent with a network of its own are scored by its process, and are in a later report.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from genesis_fp16.domain.predictor import (
    BETS,
    CALIBRATION_BINS,
    JudgedOutcomes,
    PolicySums,
)
from genesis_fp16.predictor.models import ServedModel
from infrastructure.agent_contract.transition import Transition
from infrastructure.decisions.intake import joined
from infrastructure.decisions.log import read_record
from infrastructure.decisions.records import DamagedLineError, LogRecord, Place
from infrastructure.trajectories.record import parse_transition
from infrastructure.trajectories.schema import label_of, transition_problem
from infrastructure.world_model import WorldModel
from infrastructure.world_model.distributions import BoxDistribution, DiscreteDistribution
from infrastructure.world_model.fitting import FittedModel
from infrastructure.world_model.fitting.scoring import expected_nll, row_nll

MOST_WAITING = 200  # of one agent, between two reports; further ones are left out
_CLIP = 4.0  # standard deviations below the bound from which a loss counts as so low
_SLACK = 2.0  # standard errors by which the held-out value may be too low
_DRIFT_ROWS = 200.0  # about so many of the last rows decide how far inputs have drifted
_FEWEST_DRIFT_ROWS = 100.0
_SMALLEST_WEIGHT = 1e-3  # of a propensity, so that no weight is larger than its inverse


Waiting = tuple[Path, LogRecord]
"""Folder of the agent's log, and a record of what came true."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What is to be compared: a transition, and the decision that it came from, if any."""

    transition: Transition
    decision: LogRecord | None
    outcome: LogRecord | None


class Judge:
    """Collects what came true, and scores it when a report is due; safe in two threads.

    Args:
        served: Returns what answers for an agent now; None if nothing is in memory.
        elsewhere: Has the process of an agent's own network score these; its answer is given to
            `answered`. None to leave them out.
    """

    def __init__(
        self,
        served: Callable[[str], ServedModel | None],
        elsewhere: Callable[[str, Sequence[Waiting]], None] | None = None,
    ) -> None:
        self._served, self._elsewhere, self._lock = served, elsewhere, threading.Lock()
        self._waiting: dict[str, list[Waiting]] = {}
        self._answered: dict[str, JudgedOutcomes] = {}
        self._drift: dict[str, InputDrift] = {}

    def add(self, agent: str, log: Path, record: LogRecord) -> None:
        """Compare what *record* says came true: an outcome that counts, or a transition.

        Args:
            log: Folder of the agent's log, which holds the decision.
        """
        with self._lock:
            waiting = self._waiting.setdefault(agent, [])
            if len(waiting) < MOST_WAITING:
                waiting.append((log, record))

    def answered(self, agent: str, judged: JudgedOutcomes) -> None:
        """Put what the process of the agent's own network has scored into the next report."""
        with self._lock:
            self._answered[agent] = judged

    def take(self) -> dict[str, JudgedOutcomes]:
        """Score what waits; by agent, of those that have a model to be judged."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
            judged, self._answered = self._answered, {}
        for agent, items in waiting.items():
            served = self._served(agent)
            if served is not None and served.own_network and self._elsewhere is not None:
                self._elsewhere(agent, items)
                continue
            if served is None or served.model is None or served.version is None:
                continue
            seen = [one for log, record in items if (one := _seen(log, record)) is not None]
            result = self._judge(agent, served.version, served.model, seen)
            if result is not None:
                judged[agent] = result
        return judged

    def _judge(
        self, agent: str, version: str, model: WorldModel, seen: Sequence[_Seen]
    ) -> JudgedOutcomes | None:
        fitted, reference = model.fitted_model, HeldOut.of(model.metrics)
        if fitted is None or reference is None:
            return None
        spec = fitted.spec
        usable = [one for one in seen if transition_problem(spec, one.transition) is None]
        transitions = [one.transition for one in usable]
        followed = [_was_answered(one.decision) for one in usable]
        judged = judge_rows(fitted, reference, version, transitions, followed)
        if judged is None:
            return None
        drift = self._drift.get(agent)
        if drift is None or drift.version != version:
            drift = self._drift[agent] = InputDrift(version)
        drift.add(fitted.encoder.standardised_observations([t.observation for t in transitions]))
        judged.input_drift = drift.largest
        for one in usable:
            _add_policies(judged.policies, one, fitted)
        return judged


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOut:
    """What a model showed on the test groups when it was published.

    Attributes:
        loss: Mean log loss, in nats.
        base_rate: Mean log loss of the base rate.
        error: Standard error of the mean.
        deviation: Standard deviation of the losses.
    """

    loss: float
    base_rate: float
    error: float
    deviation: float

    @classmethod
    def of(cls, metrics: Mapping[str, float]) -> HeldOut | None:
        """Read the *metrics* of a publication; None if an older release made it."""
        names = ("nll", "nll_skill", "nll_standard_error", "nll_deviation")
        values = [metrics.get(name, math.nan) for name in names]
        loss, skill, error, deviation = values
        if not all(map(math.isfinite, values)) or deviation <= 0.0 or skill <= 0.0:
            return None
        return cls(loss=loss, base_rate=loss + skill, error=error, deviation=deviation)

    def evidence(self, nll_N: Tensor, expected_N: Tensor) -> list[float]:
        """Sum over the rows of ``log(1 + bet (loss - bound) / deviation)`` for each of `BETS`.

        The bound is the *expected* loss plus two standard errors of the held-out one. While the
        mean loss is not above it, each factor has at most the mean 1: the product is an e-process
        (Waudby-Smith and Ramdas 2024, "Estimating means of bounded random variables by betting").
        """
        bound_N = expected_N + _SLACK * self.error
        excess_N = ((nll_N - bound_N) / self.deviation).clamp(min=-_CLIP)
        return [float((bet * excess_N).log1p().sum()) for bet in BETS]


class InputDrift:
    """How far recent inputs are from those of the training, by exponentially weighted moments."""

    def __init__(self, version: str) -> None:
        self.version = version
        self._weight = 0.0
        self._mean_K: Tensor | None = None
        self._square_K: Tensor | None = None

    def add(self, numbers_NK: Tensor) -> None:
        """Take in rows of standardised inputs."""
        mean_K, square_K = numbers_NK.double().mean(0), numbers_NK.double().square().mean(0)
        if self._mean_K is None or self._square_K is None:
            self._mean_K, self._square_K = torch.zeros_like(mean_K), torch.zeros_like(mean_K)
        rows = float(len(numbers_NK))
        kept = self._weight * math.exp(-rows / _DRIFT_ROWS)
        share = rows / (kept + rows)
        self._mean_K += share * (mean_K - self._mean_K)
        self._square_K += share * (square_K - self._square_K)
        self._weight = kept + rows

    @property
    def largest(self) -> float | None:
        """Largest shift of an input's mean, in standard deviations of the training, or, if that is
        more, change of its standard deviation; None before there are enough rows.
        """
        if self._mean_K is None or self._square_K is None or self._weight < _FEWEST_DRIFT_ROWS:
            return None
        if not len(self._mean_K):
            return 0.0
        deviation_K = (self._square_K - self._mean_K.square()).clamp(min=0.0).sqrt()
        return float(torch.maximum(self._mean_K.abs(), (deviation_K - 1.0).abs()).max())


@torch.inference_mode()
def judge_rows(
    fitted: FittedModel,
    reference: HeldOut,
    version: str,
    transitions: Sequence[Transition],
    followed: Sequence[bool] | None = None,
) -> JudgedOutcomes | None:
    """Compare what came true in *transitions*, which fit the spec, with what *fitted* predicts.

    A model that is followed leads to other outcomes than those it was tested on, whose loss may be
    higher: where a rare action succeeds in half of the cases, the loss is that of a coin. So what
    came of a decision that a model answered is held to the loss that this model itself expects
    there, if that is more than the held-out one.

    Args:
        followed: Whether a model answered the decision; False by default.

    Returns:
        None if there are no transitions.
    """
    if not transitions:
        return None
    predicted = fitted.predict_transitions(transitions)
    outcomes = fitted.codec.outcomes(transitions)
    nll_N = row_nll(predicted, outcomes, fitted.codec)
    own_N = expected_nll(predicted, fitted.codec)
    followed_N = torch.tensor(followed if followed is not None else [False] * len(transitions))
    expected_N = torch.where(followed_N & (own_N > reference.loss), own_N, reference.loss)
    judged = JudgedOutcomes(
        version=version,
        held_out_loss=reference.loss,
        base_rate_loss=reference.base_rate,
        count=len(transitions),
        loss_sum=float(nll_N.sum()),
        expected_loss_sum=float(expected_N.sum()),
        evidence=reference.evidence(nll_N, expected_N),
        policies=PolicySums(),
    )
    for name in fitted.codec.heads:
        distribution = predicted[name]
        if isinstance(distribution, BoxDistribution):
            _add_coverage(judged, fitted, name, distribution, outcomes[name])
    if fitted.codec.success_label is not None:
        name, label = fitted.codec.success_label
        distribution = predicted[name]
        if isinstance(distribution, DiscreteDistribution):
            happened_N = outcomes[name] == label
            _add_calibration(judged, distribution.probabilities[:, label], happened_N)
    return judged


def _seen(log: Path, record: LogRecord) -> _Seen | None:
    """What *record* says came true; None if it cannot be read or used."""
    try:
        if record["kind"] == "transition":
            return _Seen(parse_transition(record["transition"]), None, None)
        decision = read_record(log, Place(*record["of"]))
        return _Seen(joined(decision, record), decision, record)
    except (OSError, DamagedLineError, ValueError, TypeError, KeyError):
        return None  # the run that takes it in reports it


def _was_answered(decision: LogRecord | None) -> bool:
    """Whether a model answered *decision*, so that it may have been followed."""
    return decision is not None and (decision.get("answer") or {}).get("version") is not None


def _add_coverage(
    judged: JudgedOutcomes,
    fitted: FittedModel,
    name: str,
    distribution: BoxDistribution,
    value_NC: Tensor,
) -> None:
    select_kept = fitted.codec.standardisers[name].select_kept
    error_NK = select_kept((value_NC - distribution.mean).abs())
    judged.covered += int((error_NK <= select_kept(distribution.half_width_90())).sum())
    judged.intervals += error_NK.numel()


def _add_calibration(judged: JudgedOutcomes, chance_N: Tensor, happened_N: Tensor) -> None:
    bin_N = (chance_N * CALIBRATION_BINS).long().clamp(0, CALIBRATION_BINS - 1)

    def sums(values_N: Tensor) -> list[float]:
        return bin_N.bincount(values_N.double(), minlength=CALIBRATION_BINS).tolist()

    judged.binned = sums(torch.ones_like(chance_N))
    judged.expected, judged.happened = sums(chance_N), sums(happened_N)


def _add_policies(policies: PolicySums, one: _Seen, fitted: FittedModel) -> None:
    """Add the decision if it explored, a model answered it, and its worth is known."""
    decision, outcome = one.decision, one.outcome
    if decision is None or outcome is None:
        return
    propensity, order = one.transition.propensity, (decision.get("answer") or {}).get("order")
    if not order or not _was_answered(decision) or propensity is None or propensity >= 1.0:
        return
    reward = outcome.get("reward")
    if reward is None:
        if fitted.spec.success is None:
            return
        name, label = fitted.spec.success
        reward = float(label_of(one.transition.next_observation.get(name)) == label)
    weight = 1.0 / max(propensity, _SMALLEST_WEIGHT)
    chosen = decision["chosen"]
    policies.add(reward, weight * (chosen == order[0]), weight * (chosen == 0))
