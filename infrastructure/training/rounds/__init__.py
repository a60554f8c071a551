"""The batches of a job, round by round, and the copies of the model that generate them.

An epoch of a `TrainingJob` is one round; a round of an `OnPolicyJob` needs the model's weights.
"""

from infrastructure.training.rounds.first_batches import batches_of_each_kind, first_batches
from infrastructure.training.rounds.kinds import BatchSource, JobKind, MakeBatches, kind_of
from infrastructure.training.rounds.on_policy import GeneratedRound, OnPolicyRounds
from infrastructure.training.rounds.rounds import DatasetRounds, Rounds

__all__ = [
    "BatchSource",
    "DatasetRounds",
    "GeneratedRound",
    "JobKind",
    "MakeBatches",
    "OnPolicyRounds",
    "Rounds",
    "batches_of_each_kind",
    "first_batches",
    "kind_of",
]
