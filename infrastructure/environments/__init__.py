"""Rounds that act: a policy collects in environments between updates, into its replay buffer.

`EnvironmentRounds.batches` is the ``batches`` of an `OnPolicyJob`. Works with the vector
environments of gymnasium, and does not import it.
"""

from infrastructure.environments.actions import Act
from infrastructure.environments.environment_rounds import EnvironmentRounds, RoundOptions

__all__ = ["Act", "EnvironmentRounds", "RoundOptions"]
