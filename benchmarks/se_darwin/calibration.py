"""Calibration of the world model on the candidates that it chooses itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np
import torch

from agents.se_darwin.settings import SEDarwinSettings
from benchmarks.se_darwin.dataset import ExecutedBug
from benchmarks.se_darwin.learning import FIXED, WorldModelScorer
from benchmarks.se_darwin.study import TrainedFold
from infrastructure.agent_contract import Transition
from infrastructure.world_model.distributions import BoxDistribution, DiscreteDistribution
from infrastructure.world_model.distributions.metrics import expected_calibration_error
from infrastructure.world_model.fitting import FittedModel

_SETTINGS = SEDarwinSettings()


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Predictions and outcomes of candidates.

    Attributes:
        probability: Predicted probability of a repair, float32 ``[rows]``.
        repaired: Whether the candidate was a repair, bool ``[rows]``.
        covered: Whether the change of score lay in its 90 % interval, bool ``[rows]``.
        groups: Module of each candidate.
    """

    probability: torch.Tensor
    repaired: torch.Tensor
    covered: torch.Tensor
    groups: Sequence[str]

    @property
    def ece(self) -> float:
        """Expected calibration error of the probability of a repair."""
        return expected_calibration_error(self.probability, self.repaired)

    @property
    def coverage(self) -> float:
        """Share of the changes of score that lie in their 90 % interval."""
        return float(self.covered.double().mean())

    @classmethod
    def join(cls, parts: Sequence[Rows]) -> Rows:
        """Concatenate *parts*."""
        return cls(
            probability=torch.cat([part.probability for part in parts]),
            repaired=torch.cat([part.repaired for part in parts]),
            covered=torch.cat([part.covered for part in parts]),
            groups=[group for part in parts for group in part.groups],
        )


def simulate_policy(
    model: FittedModel, cases: Sequence[ExecutedBug], seed: int
) -> Iterator[Transition]:
    """Yield what the agent would record: the model's choices, and the share of random ones."""
    scorer = WorldModelScorer(model=model)
    for number, case in enumerate(cases):
        rng = Random(f"{seed}/{number}/{case.bug.task.name}")
        order = np.argsort(-scorer.score(case.replay), kind="stable").tolist()
        recorded = case.replay.transitions(case.bug.module)
        most = _SETTINGS.evaluations_per_task
        while order and most:
            most -= 1
            explores = rng.random() < _SETTINGS.exploration
            position = rng.randrange(len(order)) if explores else 0
            propensity = _SETTINGS.exploration / len(order)
            propensity += (1.0 - _SETTINGS.exploration) * (position == 0)
            transition = recorded[order.pop(position)]
            yield replace(transition, propensity=propensity)
            if transition.terminated:
                break


def all_candidates(cases: Sequence[ExecutedBug]) -> list[Transition]:
    """Return all candidates of all cases, as a uniform policy would record them."""
    return [transition for case in cases for transition in case.replay.transitions(case.bug.module)]


def check_predictions(model: FittedModel, transitions: Sequence[Transition]) -> Rows:
    """Compare predictions of *model* with the recorded outcomes."""
    predicted = model.predict_transitions(transitions)
    outcomes = model.codec.outcomes(transitions)
    chances, delta = predicted["outcome"], predicted["score_delta"]
    if not isinstance(chances, DiscreteDistribution) or not isinstance(delta, BoxDistribution):
        raise TypeError("the spec of SE-Darwin has a Discrete outcome and a Box score_delta")
    error = (outcomes["score_delta"] - delta.mean).abs()[:, 0]
    return Rows(
        probability=chances.probabilities[:, FIXED],
        repaired=outcomes["outcome"] == FIXED,
        covered=error <= delta.half_width_90()[:, 0],
        groups=[transition.group for transition in transitions],
    )


def study_calibration(trained: Sequence[TrainedFold], seed: int) -> dict[str, Rows]:
    """Calibrate on all candidates or on the model's own choices, and test on both.

    Own choices for calibration are made among the bugs of the calibration modules.
    """
    found: dict[str, list[Rows]] = {}
    for item in trained:
        model = item.ours["fp32"].model
        on_policy = model.recalibrated(list(simulate_policy(model, item.fold.calibration, seed)))
        for name, fitted in (("all candidates", model), ("own choices", on_policy)):
            chosen = list(simulate_policy(model, item.fold.test, seed + 1))
            tested_on = {"own choices": chosen, "all candidates": all_candidates(item.fold.test)}
            for where, rows in tested_on.items():
                found.setdefault(f"calibrated on {name}, held to {where}", []).append(
                    check_predictions(fitted, rows)
                )
    return {name: Rows.join(parts) for name, parts in found.items()}
