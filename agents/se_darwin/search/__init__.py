"""Evolutionary search: archive, operators, proposer, and the policy that chooses candidates."""

from agents.se_darwin.search.evolution import Evolution, Outcome
from agents.se_darwin.search.policy import Policy, Ranker

__all__ = ["Evolution", "Outcome", "Policy", "Ranker"]
