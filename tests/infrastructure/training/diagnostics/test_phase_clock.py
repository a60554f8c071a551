from __future__ import annotations

from collections.abc import Callable

import pytest

from infrastructure.training.diagnostics.phase_clock import PhaseClock, PhaseTime, phase


class Hands:
    """Two clocks that a test sets."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    def pass_(self, wall: float, cpu: float) -> None:
        self.wall, self.cpu = self.wall + wall, self.cpu + cpu


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
def clock(hands: Hands) -> PhaseClock:
    return PhaseClock(wall=lambda: hands.wall, cpu=lambda: hands.cpu)


def test_a_phase_does_not_contain_the_phases_inside_it(clock: PhaseClock, hands: Hands) -> None:
    with clock.phase("outer"):
        hands.pass_(1.0, 0.5)
        with clock.phase("inner"):
            hands.pass_(2.0, 1.0)
        with clock.phase("inner"):
            hands.pass_(3.0, 3.0)
        hands.pass_(4.0, 0.0)
    hands.pass_(100.0, 100.0)  # outside of every phase
    assert clock.take() == {"outer": PhaseTime(1, 5.0, 0.5), "inner": PhaseTime(2, 5.0, 4.0)}
    assert clock.take() == {}


def test_nothing_is_taken_inside_a_phase(clock: PhaseClock) -> None:
    with clock.phase("open"), pytest.raises(RuntimeError, match="close it first"):
        clock.take()


def test_memory_is_recorded_on_request(clock: PhaseClock) -> None:
    with clock.phase("with", memory=True), clock.phase("without"):
        pass
    taken = clock.take()
    assert (taken["with"].peak_bytes or 0) > 2**20
    assert taken["without"].peak_bytes is None


def test_calls_of_an_object_are_charged_until_the_marks_are_removed(
    clock: PhaseClock, hands: Hands
) -> None:
    class Owner:
        def work(self, then: Callable[[], None]) -> str:
            hands.pass_(1.0, 1.0)
            then()
            return "done"

        def rest(self) -> None:
            hands.pass_(2.0, 0.0)

    owner = Owner()
    marked = clock.mark(owner, {"work": "working", "rest": "resting"})
    assert owner.work(owner.rest) == "done"
    marked.remove()
    owner.work(owner.rest)
    assert vars(owner) == {}
    assert clock.take() == {"working": PhaseTime(1, 1.0, 1.0), "resting": PhaseTime(1, 2.0, 0.0)}


def test_code_that_names_its_phase_is_charged_only_to_an_active_clock(
    clock: PhaseClock, hands: Hands
) -> None:
    def named() -> None:
        with phase("named"):
            hands.pass_(1.0, 1.0)

    named()
    with clock.active():
        named()
    named()
    assert clock.take() == {"named": PhaseTime(1, 1.0, 1.0)}
