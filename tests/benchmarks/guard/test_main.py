"""What the trials of the guard print, and that every planted agent can be made."""

import math
import operator

import pytest

from benchmarks.guard import agents as planted_agents
from benchmarks.guard import faults as planted_faults
from benchmarks.guard.__main__ import format_flips, format_outcomes
from benchmarks.guard.flips import Flip
from benchmarks.guard.trials import Outcome
from genesis_fp16.domain.guard import Trigger


def test_a_missed_fault_and_a_false_alarm_are_shown() -> None:
    caught = Outcome(
        agent="a", expected="underflow", fired="underflow", step=500, seconds=1.5, runs=1
    )
    missed = Outcome(agent="b", expected="loss_drift", onset=300, runs=2)
    wronged = Outcome(agent="c", expected="", fired="underflow", step=7, runs=1)
    healthy = Outcome(agent="d", expected="", runs=3)
    lines = format_outcomes([caught, missed, wronged, healthy]).splitlines()
    assert [line.split() for line in lines[1:-1]] == [
        ["a", "underflow", "underflow", "0", "500", "1.5", "1"],
        ["b", "loss_drift", "none", "300", "2"],
        ["c", "none", "underflow", "0", "7", "1"],
    ]
    assert lines[-1] == "1 false alarms in 4 runs of 2 healthy agents"
    assert [o.right for o in (caught, missed, wronged, healthy)] == [True, False, False, True]


def test_flips_are_told_by_their_direction() -> None:
    flips = [Flip(number=n, agent="a", to="fp32", seconds=n / 100) for n in range(101)]
    flips.append(Flip(number=0, agent="a", to="fp16", seconds=9.0))
    said = format_flips("fp32", flips)
    assert "101 flips" in said
    assert "p50 0.50 s, p95 0.95 s, longest 1.00 s" in said


@pytest.mark.parametrize("name", planted_agents.PLANS)
def test_an_entry_point_makes_each_agent(name: str) -> None:
    made = operator.attrgetter(f"agents.{name.replace('-', '_')}")(planted_agents)()
    assert made.name == name
    expected = planted_agents.PLANS[name].expected
    assert expected in {"", *Trigger}
    assert bool(expected) != name.startswith("healthy")


def test_the_data_are_whole_until_the_onset() -> None:
    import torch

    x = torch.ones(4, 2)
    onset = planted_faults.ONSET_STEP
    assert torch.equal(planted_faults.missing(x, onset - 1), x)
    broken = planted_faults.missing(x, onset)
    assert math.isnan(broken[0, 0])
    assert torch.equal(broken[1:], x[1:])
