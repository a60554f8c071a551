from __future__ import annotations

import pytest

from genesis_fp16.plugins.probe.process import _PROBE_MODULE, Ended

TRACE = """Timeout (0:00:30)!
Thread 0x00007f (most recent call first):
  File "torch/__init__.py", line 7 in <module>
  File "slow_agent.py", line 3 in load
  File "{probe}", line 90 in main
"""


@pytest.mark.parametrize(
    ("status", "trace", "reason"),
    [
        (None, "", "did not load within 30 s: wait"),
        (1, TRACE, "did not load within 30 s, it hung at slow_agent.py:3 in load: wait"),
        (-11, "", "crashed while loading: killed by SIGSEGV"),
        (3, "", "ended its process with status 3 while loading"),
    ],
)
def test_a_probe_without_an_answer_tells_why(status: int | None, trace: str, reason: str) -> None:
    ended = Ended(status, "", "", trace.format(probe=_PROBE_MODULE))
    assert ended.failure(30.0, "wait", "slow_agent") == reason
