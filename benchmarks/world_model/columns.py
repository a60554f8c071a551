"""Inputs of the peers: the fields of transitions as a person would prepare them for scikit-learn.

Numbers are standardised, labels are one-hot, text is TF-IDF of words and pairs of words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

from benchmarks.world_model.metrics import Numbers
from infrastructure.agent_contract import Transition
from infrastructure.agent_contract.transition import Box, Discrete, Text, TransitionSpec

TOPICS = 100
"""Dimensions to which text is reduced for peers that need dense inputs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """Inputs of some rows.

    Attributes:
        dense: Numbers and labels, ``[N, D]``; missing numbers are NaN.
        gaps: Dimensions in which the rows to learn from had gaps, ``[D]`` bool.
        text: TF-IDF, a sparse matrix; None without text.
        topics: The same reduced to `TOPICS`; None without text.
    """

    dense: Numbers
    gaps: NDArray[np.bool_]
    text: sparse.csr_matrix | None = None
    topics: Numbers | None = None

    @property
    def with_gaps(self) -> Numbers:
        """Dense inputs; missing numbers are NaN."""
        return self.dense if self.topics is None else np.hstack([self.dense, self.topics])

    @property
    def filled(self) -> Numbers:
        """Dense inputs; missing numbers are 0, their mean, and marked by a further column."""
        parts = [np.nan_to_num(self.dense), np.isnan(self.dense[:, self.gaps]).astype(np.float64)]
        return np.hstack(parts if self.topics is None else [*parts, self.topics])

    @property
    def wide(self) -> Numbers | sparse.csr_matrix:
        """Inputs of linear models: like `filled`, but with the words themselves."""
        if self.text is None:
            return self.filled
        numbers = np.nan_to_num(self.dense)
        return sparse.hstack([sparse.csr_matrix(numbers), self.text]).tocsr()


class Columns:
    """Prepares inputs with statistics of the *transitions* to learn from."""

    def __init__(self, spec: TransitionSpec, transitions: Sequence[Transition]) -> None:
        self._spec = spec
        self._vectorizers = {
            name: TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2)).fit(
                _texts(transitions, name)
            )
            for name, field in spec.observation.items()
            if isinstance(field, Text)
        }
        numbers = self._dense(transitions)
        self._mean, self._deviation = np.nanmean(numbers, 0), np.nanstd(numbers, 0)
        self._deviation[self._deviation == 0] = 1.0
        self._gaps = np.asarray(np.isnan(numbers).any(0))
        self._topics: TruncatedSVD | None = None
        if self._vectorizers:
            words = self._words(transitions)
            self._topics = TruncatedSVD(min(TOPICS, words.shape[1] - 1), random_state=0).fit(words)

    def inputs(self, transitions: Sequence[Transition]) -> Inputs:
        """Inputs of *transitions*."""
        dense = (self._dense(transitions) - self._mean) / self._deviation
        if self._topics is None:
            return Inputs(dense=dense, gaps=self._gaps)
        words = self._words(transitions)
        topics = self._topics.transform(words)
        return Inputs(dense=dense, gaps=self._gaps, text=words, topics=topics)

    def _dense(self, transitions: Sequence[Transition]) -> Numbers:
        parts = [np.empty((len(transitions), 0))]
        for part in ("observation", "action"):
            for name, field in getattr(self._spec, part).items():
                values = [getattr(transition, part)[name] for transition in transitions]
                if isinstance(field, Discrete):
                    one_hot = np.array(values)[:, None] == np.array(field.values)
                    parts.append(one_hot.astype(np.float64))
                elif isinstance(field, Box):
                    parts.append(np.array(values, dtype=np.float64).reshape(len(values), -1))
        return np.hstack(parts)

    def _words(self, transitions: Sequence[Transition]) -> sparse.csr_matrix:
        matrices = [
            vectorizer.transform(_texts(transitions, name))
            for name, vectorizer in self._vectorizers.items()
        ]
        return sparse.hstack(matrices).tocsr()


def _texts(transitions: Sequence[Transition], name: str) -> list[str]:
    return [str(transition.observation[name]) for transition in transitions]
