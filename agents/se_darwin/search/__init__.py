"""Best-first search: rankers, frontier, archive, operators, and the policy."""

from agents.se_darwin.search.evolution import Evolution, StepResult
from agents.se_darwin.search.policy import Policy
from agents.se_darwin.search.ranker import RandomRanker, Ranker, SuspicionRanker

__all__ = ["Evolution", "Policy", "RandomRanker", "Ranker", "StepResult", "SuspicionRanker"]
