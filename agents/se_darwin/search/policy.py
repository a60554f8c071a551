"""The policy: which ranker chooses the candidates, how many at a time, and how many at random."""

from __future__ import annotations

from dataclasses import dataclass, field

from agents.se_darwin.search.ranker import Ranker, SuspicionRanker


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """How a search chooses candidates.

    Attributes:
        ranker: Estimates the chance of each candidate; a world model, or one of
            `agents.se_darwin.search.ranker`.
        batch: Candidates of the first generations; later ones grow with the number that were run.
        epsilon: Share of random choices, in [0, 1].
        weighs_effects: Whether the order of single edits also depends on what they would change
            in the values at their place; see `agents.se_darwin.effects`.
    """

    ranker: Ranker = field(default_factory=SuspicionRanker)
    batch: int = 2
    epsilon: float = 0.0
    weighs_effects: bool = False

    def __post_init__(self) -> None:
        if self.batch < 1 or not 0.0 <= self.epsilon <= 1.0:
            raise ValueError(
                f"a policy needs batch >= 1 and epsilon in [0, 1], got {self.batch} and "
                f"{self.epsilon}"
            )
