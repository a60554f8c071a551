"""Coverage of the off-policy intervals against the exact truth on revealed data sets.

``python -m benchmarks.bandit.off_policy``. A supervised set becomes a contextual bandit (Bietti et
al., arXiv:1802.04064): features are shown, an action is a class, and only the reward of the chosen
class is revealed. As the set has all labels, the value of a policy on it is known exactly. Each
replication draws rows with replacement and actions by an epsilon-greedy policy of another model;
its intervals then contain that value, or not. Coverage among the few replications whose sample
happens to suffice would be selected, so it is shown where nine in ten do.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from infrastructure.decisions.off_policy import (
    Floats,
    LoggedRewards,
    OffPolicyEstimator,
    TargetPolicy,
    cross_fitted,
    greedy,
)

SETS = ("breast_cancer", "digits", "wine")
EXPLORATIONS = (0.5, 1.0)
ROWS = 12_000  # decisions of a replication
SUFFICIENT = 0.9  # share of the replications with enough from which coverage is shown


@dataclass(frozen=True, kw_only=True, slots=True)
class Bandit:
    """A set with all rewards revealed.

    Attributes:
        reward_NA: Reward of each action: 1 for the label.
        logged_N, candidate_N, in_use_N: Actions that the models prefer.
        scores_NA: Candidate's probabilities of the classes.
    """

    reward_NA: Floats
    logged_N: NDArray[np.int64]
    candidate_N: NDArray[np.int64]
    in_use_N: NDArray[np.int64]
    scores_NA: Floats


def load(name: str) -> Bandit:
    """Fit the three models on a third of the set; the rest is for decisions."""
    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    train, rest, labels, rest_labels = train_test_split(
        x, y, train_size=1 / 3, random_state=0, stratify=y
    )

    def fitted(rows: int, columns: int) -> Floats:
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        model.fit(train[:rows, :columns], labels[:rows])
        chances = np.zeros((len(rest), y.max() + 1))
        chances[:, model.classes_] = model.predict_proba(rest[:, :columns])
        return chances

    columns = x.shape[1]
    few = fitted(40, columns // 3)
    candidate = fitted(len(train), columns)
    return Bandit(
        reward_NA=np.eye(y.max() + 1)[rest_labels],
        logged_N=few.argmax(1),
        candidate_N=candidate.argmax(1),
        in_use_N=fitted(60, columns // 2).argmax(1),
        scores_NA=candidate,
    )


def replicate(
    bandit: Bandit, explore: float, seed: int, count: int = ROWS
) -> list[list[bool] | None]:
    """Whether the intervals contain the truth, by SNIPS and doubly robust; None if not enough.

    First those of the candidate's value, then those of its gain over the model in use.
    """
    generator = np.random.default_rng(seed)
    total, actions = bandit.reward_NA.shape
    rows = generator.integers(0, total, count)
    groups = [str(row) for row in generator.integers(0, count, count)]  # one decision each, or more
    best = bandit.logged_N[rows]
    explores = generator.random(count) < explore
    chosen = np.where(explores, generator.integers(0, actions, count), best)
    propensity = explore / actions + (1 - explore) * (chosen == best)
    reward = bandit.reward_NA[rows, chosen]
    first, second = bandit.candidate_N[rows], bandit.in_use_N[rows]
    scores = bandit.scores_NA[rows]

    def score(positions: NDArray[np.int64]) -> Floats:
        return np.take_along_axis(scores, positions[:, None], axis=1)

    q, q_first, q_second = cross_fitted(
        score(chosen), reward, groups, [score(first), score(second)]
    )
    estimator = OffPolicyEstimator(
        LoggedRewards(reward_N=reward, propensity_N=propensity, predicted_N=q, groups=groups),
        replications=400,
        seed=seed,
    )
    candidate = TargetPolicy(probability_N=greedy(first, chosen), predicted_N=q_first)
    in_use = TargetPolicy(probability_N=greedy(second, chosen), predicted_N=q_second)
    every = np.arange(total)
    truth = bandit.reward_NA[every, bandit.candidate_N].mean()
    gain = truth - bandit.reward_NA[every, bandit.in_use_N].mean()
    value, difference = estimator.value(candidate), estimator.difference(candidate, in_use)
    return [
        [
            interval.low <= true <= interval.high
            for interval in (estimate.snips, estimate.doubly_robust)
        ]
        if estimate.is_enough
        else None
        for estimate, true in ((value, truth), (difference, gain))
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the coverage of each interval by set and exploration."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replications", type=int, default=500)
    parser.add_argument("--first-seed", type=int, default=1_000_000)
    parser.add_argument("--explore", type=float, nargs="+", default=EXPLORATIONS)
    parser.add_argument("--rows", type=int, default=ROWS, help="decisions of a replication")
    parser.add_argument("--sets", nargs="+", default=SETS)
    given = parser.parse_args(arguments)
    print(
        f"{given.replications} replications of {given.rows} decisions; coverage of 95 % intervals"
    )
    print("set             explore  value: enough  snips    DR   gain: enough  snips    DR")
    for name in given.sets:
        bandit = load(name)
        for explore in given.explore:
            seeds = range(given.first_seed, given.first_seed + given.replications)
            results = [replicate(bandit, explore, seed, given.rows) for seed in seeds]
            cells = []
            for column in zip(*results, strict=True):
                enough = [contains for contains in column if contains is not None]
                is_shown = len(enough) >= SUFFICIENT * given.replications
                shares = np.mean(enough, axis=0) if is_shown else (np.nan, np.nan)
                cells.append(f"{len(enough):13}  {shares[0]:.3f}  {shares[1]:.3f}")
            print(f"{name:15} {explore:7g} {'  '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
