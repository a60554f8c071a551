"""Output of the guard's trials, and the factories of their agents."""

import math
import operator
import re

import pytest

from benchmarks.guard import agents, faults
from benchmarks.guard.__main__ import format_flips, format_trials
from benchmarks.guard.flips import Flip
from benchmarks.guard.trials import TrialResult
from genesis_fp16.domain.guard import Trigger


def test_a_missed_fault_and_a_false_alarm_are_shown() -> None:
    caught = TrialResult(
        agent="a", expected="underflow", fired="underflow", step=500, seconds=1.5, runs=1
    )
    missed = TrialResult(agent="b", expected="loss_drift", onset=300, runs=2)
    false_alarm = TrialResult(agent="c", expected="", fired="underflow", step=7, runs=1)
    healthy = TrialResult(agent="d", expected="", runs=3)
    results = [caught, missed, false_alarm, healthy]
    lines = format_trials(results).splitlines()
    assert [line.split() for line in lines[1:-1]] == [
        ["a", "underflow", "underflow", "0", "500", "1.5", "1"],
        ["b", "loss_drift", "none", "300", "2"],
        ["c", "none", "underflow", "0", "7", "1"],
    ]
    assert re.findall(r"\d", lines[-1]) == ["1", "4", "2"]
    assert [each.is_correct for each in results] == [True, False, False, True]


def test_flips_are_reported_by_direction() -> None:
    flips = [Flip(number=n, agent="a", to="fp32", seconds=n / 100) for n in range(101)]
    flips.append(Flip(number=0, agent="a", to="fp16", seconds=9.0))
    line = format_flips("fp32", flips)
    assert "101 flips" in line
    assert "p50 0.50 s, p95 0.95 s, longest 1.00 s" in line


@pytest.mark.parametrize("name", agents.PLANS)
def test_an_entry_point_makes_each_agent(name: str) -> None:
    made = operator.attrgetter(f"agents.{name.replace('-', '_')}")(agents)()
    assert made.name == name
    expected = agents.PLANS[name].expected
    assert expected in {"", *Trigger}
    assert bool(expected) != name.startswith("healthy")


def test_the_data_are_whole_until_the_onset() -> None:
    import torch

    x = torch.ones(4, 2)
    onset = faults.ONSET_STEP
    assert torch.equal(faults.insert_nan(x, onset - 1), x)
    broken = faults.insert_nan(x, onset)
    assert math.isnan(broken[0, 0])
    assert torch.equal(broken[1:], x[1:])
