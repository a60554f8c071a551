"""The fuzzing target runs, and can fail; `make fuzz` gives it a minute, or an hour."""

import time

import pytest

from tests.fuzz.__main__ import fuzz
from tests.fuzz.targets import TARGETS, Target

pytestmark = pytest.mark.process


@pytest.mark.parametrize("name", TARGETS)
def test_odd_inputs_are_answered_or_refused(name: str) -> None:
    tried, problem, content = fuzz(TARGETS[name], 0.1, seed=0)
    assert tried
    assert problem == "", content[:2000]


def test_a_parser_that_crashes_hangs_or_accepts_its_errors_is_told_apart() -> None:
    def crash(content: bytes) -> None:
        content.decode()

    def hang(_content: bytes) -> None:
        until = time.thread_time() + 1.1
        while time.thread_time() < until:
            pass

    seeds = [b'{"a": "b"}']
    _, problem, content = fuzz(Target(seeds=seeds, call=crash, refuses=(KeyError,)), 60, seed=0)
    assert problem.startswith("UnicodeDecodeError")
    with pytest.raises(UnicodeDecodeError):
        content.decode()
    refused = Target(seeds=seeds, call=crash, refuses=(UnicodeDecodeError,))
    assert fuzz(refused, 0.2, seed=0)[1] == ""
    assert fuzz(Target(seeds=seeds, call=hang, refuses=()), 60, seed=0)[1].startswith("took 1.")
