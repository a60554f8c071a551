"""``python -m benchmarks.bandit``: average reward of our loop beside its rivals; resumes.

Each row is a round. Those that train do so after 250 rounds and then every 500; Vowpal Wabbit
learns in each round. All explore with epsilon 0.05. Our first run is as if started by hand, the
others are due by ``every 500 outcomes``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.bandit.ours import OurLoop
from benchmarks.bandit.rivals import LogisticRegression, VowpalWabbit
from benchmarks.bandit.sets import SETS, BanditSet, Context, Rounds
from benchmarks.measuring.table import format_table

FIRST_TRAINING = 250
ROUNDS_PER_TRAINING = 500
EPSILON = 0.05
RESAMPLES = 2000
RESULTS = Path("benchmark_results/bandit")


class Learner(Protocol):
    """Chooses actions and learns from their rewards."""

    def choose(self, number: int, context: Context) -> tuple[int, float]:
        """Position of the chosen action, and its propensity."""

    def learn(
        self, number: int, context: Context, action: int, propensity: float, reward: float
    ) -> None:
        """Take in what came of a choice."""

    def train(self) -> None:
        """Train, if it does not learn in each round."""

    def close(self) -> None:
        """End it."""


LEARNERS: Mapping[str, Callable[[Rounds, int], Learner]] = {
    "ours": lambda rounds, seed: OurLoop(rounds, seed, f"epsilon {EPSILON}"),
    "vw": VowpalWabbit,
    "logistic": lambda rounds, seed: LogisticRegression(rounds, seed, EPSILON),
}


def play(bandit: BanditSet, name: str, seed: int) -> list[float]:
    """Rewards of the learner *name* in all rounds."""
    rounds = bandit.rounds(seed)
    learner, rewards = LEARNERS[name](rounds, seed), list[float]()
    for number, context in enumerate(rounds.contexts):
        if number >= FIRST_TRAINING and (number - FIRST_TRAINING) % ROUNDS_PER_TRAINING == 0:
            learner.train()
        action, propensity = learner.choose(number, context)
        rewards.append(float(rounds.actions[action] == rounds.classes[number]))
        learner.learn(number, context, action, propensity, rewards[-1])
    learner.close()
    return rewards


def interval(gain_N: NDArray[np.float64], seed: int = 0) -> tuple[float, float]:
    """95 % interval of the mean by a bootstrap over rounds."""
    generator, count = np.random.default_rng(seed), len(gain_N)
    means = [gain_N[generator.integers(count, size=count)].mean() for _ in range(RESAMPLES)]
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def kept_or_played(folder: Path, bandit: BanditSet, name: str, seed: int) -> list[float]:
    """Rewards of an earlier call, or of a new one, which is kept."""
    file = folder / f"{bandit.name}-{name}-{seed}.json"
    if not file.exists():
        rewards = play(bandit, name, seed)
        file.write_text(json.dumps(rewards))
        print(f"{bandit.name}, {name}, seed {seed}: {np.mean(rewards):.4f}", flush=True)
    played: list[float] = json.loads(file.read_text())
    return played


def report(folder: Path, sets: Sequence[BanditSet], seeds: int) -> str:
    """The table: mean rewards, and our gain over each rival with its interval."""
    rows = []
    for bandit in sets:
        rewards = {
            name: np.concatenate(
                [np.array(kept_or_played(folder, bandit, name, seed)) for seed in range(seeds)]
            )
            for name in LEARNERS
        }
        row = {"set": bandit.name, "rounds": str(len(rewards["ours"]) // seeds)}
        row |= {name: f"{reward_N.mean():.3f}" for name, reward_N in rewards.items()}
        for rival in ("vw", "logistic"):
            low, high = interval(rewards["ours"] - rewards[rival])
            row[f"gain over {rival}"] = f"{low:+.3f} to {high:+.3f}"
        rows.append(row)
    return format_table(rows, tuple(rows[0]))


def main() -> None:
    """Play what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tuning", action="store_true", help="the sets on which choices are made")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.results.mkdir(parents=True, exist_ok=True)
    sets = [bandit for bandit in SETS if bandit.tuning == options.tuning]
    print(report(options.results, sets, options.seeds))


if __name__ == "__main__":
    main()
