"""Which runs are canaries: half precision for a share of runs, FP32 for the rest."""

from __future__ import annotations

from genesis_fp16.domain.guard import GuardSettings

_PARTS = 1000  # whole numbers, so that 0.1 of 30 runs is exactly 3


def may_run_in_half(agent: str, number: int, settings: GuardSettings) -> bool:
    """Whether run *number* of *agent* belongs to the share that may run in half precision.

    The same number always has the same answer. The first run of a share is a canary, and
    canaries are spread evenly: 0.25 takes runs 1, 5, 9.

    Args:
        agent: Its name.
        number: Of the run among the agent's, from 1.
        settings: Name the share, and the agents it concerns.
    """
    if settings.canaries and agent not in settings.canaries:
        return False
    share = round(settings.canary_share * _PARTS)
    return _canaries(number, share) > _canaries(number - 1, share)


def _canaries(runs: int, share: int) -> int:
    """How many of the first *runs* are canaries: their share, rounded up."""
    return -(-runs * share // _PARTS)
