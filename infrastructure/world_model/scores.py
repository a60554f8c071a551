"""All that a decision needs of a fitted model, in one pass: order, chances, gains, confidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from infrastructure.trajectories.schema import Values
from infrastructure.world_model.distributions.confidence import confidence
from infrastructure.world_model.fitting import FittedModel
from infrastructure.world_model.prediction import (
    expected_improvements,
    rank_candidates,
    success_probabilities,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """Candidate actions as a model sees them; all but *order* by their given position.

    Attributes:
        order: Positions, best first; see `WorldModel.rank`.
        chances: Probability of the spec's success label; None if the spec names none.
        improvements: Mean of the improvement target; None if there is none.
        confidence: Confidence in each prediction; see `Prediction`.
        remarks: What is odd about a field, as a sentence that names it, and for which positions.
        unfamiliar: Positions whose predictions are shrunk to the base rate, because a number is far
            outside the training data.
    """

    order: list[int]
    chances: list[float] | None
    improvements: list[float] | None
    confidence: list[float]
    remarks: Mapping[str, list[int]]
    unfamiliar: list[int]


@torch.inference_mode()
def score_actions(model: FittedModel, observation: Values, actions: Sequence[Values]) -> Scores:
    """Score candidate *actions*, at least one; torch uses the threads that it has been given.

    Raises:
        ValueError: A field is of another type than the spec declares.
    """
    features = model.encoder.encode([observation] * len(actions), actions)
    predicted = model.predict(features)
    spec = model.spec
    chances = None if spec.success is None else success_probabilities(spec, predicted)
    improvements = expected_improvements(spec, predicted)
    return Scores(
        order=rank_candidates(len(actions), chances, improvements),
        chances=chances,
        improvements=improvements,
        confidence=confidence(predicted, model.codec).tolist(),
        remarks={text: odd_N.nonzero()[:, 0].tolist() for text, odd_N in features.flags.items()},
        unfamiliar=features.out_of_distribution.nonzero()[:, 0].tolist(),
    )
