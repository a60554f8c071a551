"""How far trainer and rollout disagree about the same tokens, and which role's rounding causes it.

`measure` compares two sets of log-probabilities, `report_mismatch` one batch under several
precisions, and `MismatchObserver` rounds of a training now and then.
`infrastructure.events.mismatch_report.attribute` reads the cause from reports.
"""

from infrastructure.policy.mismatch.attribution import LogProbs, report_mismatch, report_reference
from infrastructure.policy.mismatch.measures import Mismatch, MismatchError, measure
from infrastructure.policy.mismatch.observer import COST_SHARE, MismatchObserver

__all__ = [
    "COST_SHARE",
    "LogProbs",
    "Mismatch",
    "MismatchError",
    "MismatchObserver",
    "measure",
    "report_mismatch",
    "report_reference",
]
