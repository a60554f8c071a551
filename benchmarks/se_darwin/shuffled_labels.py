"""Negative control: a model trained on shuffled labels must not predict any target."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from benchmarks.se_darwin.learning import choose, train_ensemble
from infrastructure.agent_contract import Transition
from infrastructure.world_model.fitting import fit_linear
from infrastructure.world_model.fitting.scoring import measure
from infrastructure.world_model.fitting.training_data import DataPart, TrainingData, encode_split


def shuffle_labels(data: TrainingData, seed: int) -> TrainingData:
    """Return the same inputs, each with the outcome of another row of its part."""
    return encode_split(
        data.spec,
        {part: _shuffled_part(content, seed) for part, content in data.parts.items()},
    )


def measure_on_shuffled_labels(data: TrainingData, steps: int, seed: int) -> dict[str, float]:
    """Return held-out metrics of the chosen family after training on shuffled labels."""
    noise = shuffle_labels(data, seed)
    learned = choose(noise, train_ensemble(noise, "fp32", steps, seed), fit_linear(noise))
    predicted = learned.model.predict(noise.test.features)
    return measure(predicted, noise.test.outcomes, noise.codec)


def _shuffled_part(part: DataPart, seed: int) -> list[Transition]:
    outcomes = [(row.next_observation, row.reward) for row in part.transitions]
    Random(seed).shuffle(outcomes)
    return [
        replace(row, next_observation=following, reward=reward)
        for row, (following, reward) in zip(part.transitions, outcomes, strict=True)
    ]
