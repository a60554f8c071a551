"""Is the world model right about the candidates that it chooses itself?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np
import torch

from agents.se_darwin.search.policy import choose_ranked
from agents.se_darwin.settings import SEDarwinSettings
from benchmarks.se_darwin.dataset import Case
from benchmarks.se_darwin.learning import FIXED, WorldModelScorer
from benchmarks.se_darwin.study import Taught
from infrastructure.agent_contract import Transition
from infrastructure.world_model.distributions import BoxDistribution, DiscreteDistribution
from infrastructure.world_model.distributions.metrics import Z_90, expected_calibration_error
from infrastructure.world_model.fitting import FittedModel

_SETTINGS = SEDarwinSettings()


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Predictions and what came of them.

    Attributes:
        probability: Of a repair.
        repaired: Whether it was one.
        covered: Whether the change of score lay in its 90 % interval.
        groups: Module of each.
    """

    probability: torch.Tensor
    repaired: torch.Tensor
    covered: torch.Tensor
    groups: Sequence[str]

    @property
    def ece(self) -> float:
        """Expected calibration error of the repair."""
        return expected_calibration_error(self.probability, self.repaired)

    @property
    def coverage(self) -> float:
        """Share of changes of score within their 90 % interval."""
        return float(self.covered.double().mean())

    @classmethod
    def join(cls, parts: Sequence[Rows]) -> Rows:
        """All rows, one part after the other."""
        return cls(
            probability=torch.cat([part.probability for part in parts]),
            repaired=torch.cat([part.repaired for part in parts]),
            covered=torch.cat([part.covered for part in parts]),
            groups=[group for part in parts for group in part.groups],
        )


def follow(model: FittedModel, cases: Sequence[Case], seed: int) -> Iterator[Transition]:
    """What the agent would record: the model's choices, and its share of random ones."""
    scorer = WorldModelScorer(model=model)
    for number, case in enumerate(cases):
        rng = Random(f"{seed}/{number}/{case.bug.task.name}")
        order = np.argsort(-scorer.score(case.replay), kind="stable").tolist()
        recorded = case.replay.transitions(case.bug.module)
        most = _SETTINGS.evaluations_per_task
        for choice in choose_ranked(rng, order, most, _SETTINGS.exploration):
            made = recorded[choice.index]
            yield replace(made, propensity=choice.propensity)
            if made.terminated:
                break


def every(cases: Sequence[Case]) -> list[Transition]:
    """All candidates of all cases: what an even policy would record."""
    return [made for case in cases for made in case.replay.transitions(case.bug.module)]


def hold(model: FittedModel, transitions: Sequence[Transition]) -> Rows:
    """Predictions of *model* against what is recorded."""
    predicted = model.predict_transitions(transitions)
    outcomes = model.codec.outcomes(transitions)
    chances, delta = predicted["outcome"], predicted["score_delta"]
    if not isinstance(chances, DiscreteDistribution) or not isinstance(delta, BoxDistribution):
        raise TypeError("the spec of SE-Darwin has a Discrete outcome and a Box score_delta")
    error = (outcomes["score_delta"] - delta.mean).abs()[:, 0]
    return Rows(
        probability=chances.probabilities[:, FIXED],
        repaired=outcomes["outcome"] == FIXED,
        covered=error <= Z_90 * delta.variance.sqrt()[:, 0],
        groups=[transition.group for transition in transitions],
    )


def calibration_study(taught: Sequence[Taught], seed: int) -> dict[str, Rows]:
    """Calibrated on all candidates or on an on-policy slice; held against either.

    The on-policy slice is what the model chooses among the bugs of the calibration modules.
    """
    found: dict[str, list[Rows]] = {}
    for item in taught:
        model = item.ours["fp32"].model
        on_slice = model.recalibrated(list(follow(model, item.fold.calibration, seed)))
        for name, fitted in (("all candidates", model), ("own choices", on_slice)):
            chosen = list(follow(model, item.fold.test, seed + 1))
            for where, rows in (("own choices", chosen), ("all candidates", every(item.fold.test))):
                found.setdefault(f"calibrated on {name}, held to {where}", []).append(
                    hold(fitted, rows)
                )
    return {name: Rows.join(parts) for name, parts in found.items()}
