"""Best-first search: rankers, frontier, archive, operators, and the policy."""

from agents.se_darwin.search.evolution import Evolution, Outcome
from agents.se_darwin.search.policy import Policy
from agents.se_darwin.search.ranker import RandomRanker, Ranker, SuspicionRanker

__all__ = ["Evolution", "Outcome", "Policy", "RandomRanker", "Ranker", "SuspicionRanker"]
