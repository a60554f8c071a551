"""How far trainer and rollout disagree about the same tokens, and which role's rounding causes it.

`measure` compares two sets of log-probabilities.
"""

from infrastructure.policy.mismatch.measures import Mismatch, MismatchError, measure

__all__ = ["Mismatch", "MismatchError", "measure"]
