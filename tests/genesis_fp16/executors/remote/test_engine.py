from __future__ import annotations

import pytest

from genesis_fp16.executors.remote import EngineError, Finding, JobState, JobStatus


@pytest.mark.parametrize(
    ("message", "what", "remedy"),
    [
        ("sbatch: no; not today; see scontrol ping", "sbatch: no; not today", "see scontrol ping"),
        ("slurmctld is down; start it", "slurmctld is down", "start it"),
        ("slurmctld is down", "slurmctld is down", ""),
    ],
)
def test_the_remedy_of_an_error_follows_its_last_semicolon(
    message: str, what: str, remedy: str
) -> None:
    error = EngineError(message, temporary=True)
    assert Finding.of_error(error) == Finding(ok=False, what=what, remedy=remedy)


def test_a_status_says_its_reason_if_it_has_one() -> None:
    assert str(JobStatus(state=JobState.FAILED, reason="out of memory")) == "failed (out of memory)"
    assert str(JobStatus(state=JobState.NOT_FOUND)) == "not found"
