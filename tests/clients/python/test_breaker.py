"""When the predictor is asked, and when not."""

import pytest
from genesis_client.breaker import FIRST_SECONDS, LONGEST_SECONDS, Breaker


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_it_opens_after_three_failures_in_a_row() -> None:
    breaker = Breaker(Clock())
    assert not breaker.failed("slow", at_once=False)
    breaker.succeeded()
    assert not breaker.failed("slow", at_once=False)
    assert not breaker.failed("slow", at_once=False)
    assert breaker.reason == ""
    assert breaker.failed("slow", at_once=False)
    assert breaker.reason == "slow"


def test_it_opens_at_once_if_nothing_listens() -> None:
    breaker = Breaker(Clock())
    assert breaker.failed("refused", at_once=True)
    assert not breaker.failed("refused", at_once=True), "it was open"


def test_probes_become_rarer_until_a_question_succeeds() -> None:
    breaker = Breaker(clock := Clock())
    breaker.failed("refused", at_once=True)
    assert breaker.seconds_to_probe == pytest.approx(FIRST_SECONDS)
    for _ in range(10):
        clock.now += breaker.seconds_to_probe
        breaker.failed("refused", at_once=True)
    assert breaker.seconds_to_probe == pytest.approx(LONGEST_SECONDS)
    breaker.probed()
    assert breaker.reason == ""
    breaker.succeeded()
    breaker.failed("refused", at_once=True)
    assert breaker.seconds_to_probe == pytest.approx(FIRST_SECONDS)


def test_a_failure_after_a_probe_opens_it_again_for_longer() -> None:
    breaker = Breaker(clock := Clock())
    for _ in range(3):
        breaker.failed("slow", at_once=False)
    breaker.probed()
    clock.now += 1.0
    assert breaker.failed("slow", at_once=False)
    assert breaker.seconds_to_probe == pytest.approx(2 * FIRST_SECONDS)


def test_failures_of_calls_that_were_under_way_do_not_delay_the_probe() -> None:
    breaker = Breaker(clock := Clock())
    breaker.failed("refused", at_once=True)
    clock.now += FIRST_SECONDS / 2
    breaker.failed("refused", at_once=True)
    assert breaker.seconds_to_probe == pytest.approx(FIRST_SECONDS / 2)
