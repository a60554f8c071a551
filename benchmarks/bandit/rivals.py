"""The rivals: Vowpal Wabbit, and a logistic regression of each action with epsilon-greedy."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from benchmarks.bandit.sets import Context, Rounds


class VowpalWabbit:
    """``--cb_explore_adf`` by its defaults: epsilon 0.05, importance-weighted regression, online.

    ``-q SA`` lets the action's weight depend on the context, as VW's tutorial has it; without it a
    linear model ranks the actions alike in every context.
    """

    def __init__(self, rounds: Rounds, seed: int) -> None:
        import vowpalwabbit

        self._actions, self._random = rounds.actions, random.Random(seed)
        self._vw: Any = vowpalwabbit.Workspace(
            f"--cb_explore_adf -q SA --quiet --random_seed {seed}"
        )
        self._numbers = set(rounds.numbers)

    def choose(self, number: int, context: Context) -> tuple[int, float]:
        """Position of the chosen action, and its propensity."""
        chances = self._vw.predict(self._example(context))
        total = sum(chances)
        position = self._random.choices(range(len(chances)), chances)[0]
        return position, chances[position] / total

    def learn(
        self, number: int, context: Context, action: int, propensity: float, reward: float
    ) -> None:
        """Learn from what came of a choice."""
        self._vw.learn(self._example(context, (action, -reward, propensity)))

    def train(self) -> None:
        """Nothing: it has learned in each round."""

    def close(self) -> None:
        """End it."""
        self._vw.finish()

    def _example(self, context: Context, label: tuple[int, float, float] | None = None) -> str:
        features = []
        for name, value in context.items():
            key = _plain(name)
            if name in self._numbers:
                if value is not None:
                    features.append(f"{key}:{value}")
            elif value is not None:
                features.append(f"{key}={_plain(str(value))}")
        lines = [f"shared |S {' '.join(features)}"]
        for position in range(len(self._actions)):
            mark = f"0:{label[1]}:{label[2]} " if label and label[0] == position else ""
            lines.append(f"{mark}|A a{position}")
        return "\n".join(lines)


class LogisticRegression:
    """Epsilon-greedy over a logistic regression of each action's reward, trained when we train."""

    def __init__(self, rounds: Rounds, seed: int, epsilon: float = 0.05) -> None:
        self._rounds, self._random, self._epsilon = rounds, random.Random(seed), epsilon
        self._rows: list[tuple[dict[str, float], int, float]] = []
        self._models: dict[int, Any] = {}
        self._vectorise: Any = None

    def choose(self, number: int, context: Context) -> tuple[int, float]:
        """Position of the chosen action, and its propensity."""
        count = len(self._rounds.actions)
        if not self._models:
            return self._random.randrange(count), 1.0 / count
        vector = self._vectorise.transform([self._features(context)])
        chances = [
            self._models[action].predict_proba(vector)[0, 1] if action in self._models else 0.0
            for action in range(count)
        ]
        best = int(np.argmax(chances))
        chosen = self._random.randrange(count) if self._random.random() < self._epsilon else best
        return chosen, self._epsilon / count + (1.0 - self._epsilon) * (chosen == best)

    def learn(
        self, number: int, context: Context, action: int, propensity: float, reward: float
    ) -> None:
        """Remember what came of a choice."""
        self._rows.append((self._features(context), action, reward))

    def train(self) -> None:
        """Fit one regression for each action that has had both rewards."""
        from sklearn.feature_extraction import DictVectorizer
        from sklearn.linear_model import LogisticRegression as Regression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        self._vectorise = make_pipeline(DictVectorizer(sparse=False), StandardScaler())
        vectors = self._vectorise.fit_transform([row[0] for row in self._rows])
        actions = np.array([row[1] for row in self._rows])
        rewards = np.array([row[2] for row in self._rows])
        self._models = {}
        for action in range(len(self._rounds.actions)):
            chosen = actions == action
            if len(set(rewards[chosen])) == 2:
                self._models[action] = Regression(max_iter=1000).fit(
                    vectors[chosen], rewards[chosen]
                )

    def close(self) -> None:
        """Nothing to end."""

    def _features(self, context: Context) -> dict[str, float]:
        features = {}
        for name, value in context.items():
            if value is None:
                features[f"{name} is missing"] = 1.0
            elif name in self._rounds.numbers:
                features[name] = float(value)
            else:
                features[f"{name}={value}"] = 1.0
        return features


def _plain(text: str) -> str:
    """A name without the characters that have a meaning in VW's format."""
    return "".join(letter if letter.isalnum() else "_" for letter in text)
