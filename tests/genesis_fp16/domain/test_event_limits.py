"""Impossible numbers of workers are refused, possible ones pass, long lists are cut."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genesis_fp16.domain.event_limits import (
    MAX_FIELDS,
    MAX_NAME_LENGTH,
    MAX_NAMES,
    MAX_STEPS_PER_SECOND,
    EventLimits,
)
from infrastructure.agent_contract.parts import MOST_PARTS, PART_NAME
from infrastructure.events import EVENT_ADAPTER, Event, PrecisionState
from infrastructure.events.bounds import MAX_STEPS
from infrastructure.events.event import (
    BaselineCompared,
    CheckpointSaved,
    Evaluated,
    Finished,
    LostUpdatesMeasured,
    MismatchMeasured,
    Notice,
    OverflowDiagnosed,
    PartStats,
    PhaseStarted,
    PrecisionChanged,
    Progress,
    Published,
    Resumed,
    Started,
    StepStats,
)
from infrastructure.events.mismatch_report import MismatchReport

FP16 = PrecisionState(requested="fp16", effective="fp16", reason="default")
STEPS = StepStats(
    step=2000, applied=90, overflow=10, fp16=100, samples=6400, seconds=0.5, loss_scale=1024.0,
    precision="fp16",
)  # fmt: skip
CRITIC = PartStats(name="critic", attempted=60, overflow=9, nonfinite_loss=1, loss_scale=8.0)
ACTOR = PartStats(name="actor-2", attempted=40, overflow=1, loss=math.inf)
IN_PARTS = STEPS.model_copy(update={"parts": (CRITIC, ACTOR)})
COMPARED = BaselineCompared(
    step=9, precision="fp16", loss_scale=1.0, loss=math.inf, fp32_loss=math.nan
)
MISMATCH = MismatchReport(
    policy="bf16", rollout="bf16", tokens=9, sequences=3, k1=-1e-5, k2=1e-5, k3=math.inf,
    mean_difference=0.1, max_difference=0.2, pearson=math.nan, chi2_token=0.1,
    chi2_sequence=math.inf, effective_sample_size=0.5, sequence_std=0.1, slope=math.nan,
)  # fmt: skip
LOST = LostUpdatesMeasured(
    step=9, precision="fp16", loss_scale=1.0, zero=1.0, subnormal=0.0, seconds=0.1
)
DIAGNOSED = OverflowDiagnosed(
    step=9, precision="fp16", loss_scale=2.0**40, overflows=3, cause="forward", seconds=0.1
)
POSSIBLE = [
    Started(pid=7, device="cuda:0", torch_version="2"),
    PhaseStarted(phase="train"),
    Progress(phase="collect", done=10**9),
    PrecisionChanged(step=0, state=FP16, loss_scale=65536.0),
    STEPS,
    COMPARED,
    CheckpointSaved(step=9, path="p", size_bytes=2**40, seconds=90.0),
    Resumed(step=9, path="p"),
    Evaluated(epoch=1, metrics={"mse": math.inf}, primary="mse"),
    Published(published=True, reason="better"),
    Notice(event="odd", fields={"error": "e"}),
    Finished(outcome="done"),
    LOST,
    DIAGNOSED,
    IN_PARTS,
    MismatchMeasured(step=9, round=3, report=MISMATCH),
]


@pytest.mark.parametrize("event", POSSIBLE, ids=lambda event: event.kind)
def test_what_workers_report_passes_unchanged(event: Event) -> None:
    limits = EventLimits()
    assert limits.admit(event, 1.0) is event
    assert (limits.refused, limits.cut, limits.first_problem) == (0, 0, "")


@pytest.mark.parametrize(
    ("event", "changes"),
    [
        (STEPS, {"applied": 30_000_000}),
        (STEPS, {"applied": -1}),
        (STEPS, {"overflow": -(10**400)}),
        (STEPS, {"samples": 10**12}),
        (STEPS, {"samples": -5}),
        (STEPS, {"seconds": 60.0}),
        (STEPS, {"seconds": math.nan}),
        (STEPS, {"seconds": -0.1}),
        (STEPS, {"step": MAX_STEPS + 1}),
        (STEPS, {"fp16": 101}),
        (STEPS, {"loss_scale": math.inf}),
        (STEPS, {"cuda_memory_allocated_bytes": 10**400}),
        (STEPS, {"time": math.nan}),
        (STEPS, {"time": math.inf}),
        (COMPARED, {"seconds": math.inf}),
        (LOST, {"zero": 1.5}),
        (LOST, {"stagnation": math.nan}),
        (DIAGNOSED, {"overflows": -1}),
        (POSSIBLE[0], {"pid": -1}),
        (POSSIBLE[2], {"done": 10**400}),
        (POSSIBLE[2], {"total": -1}),
        (POSSIBLE[3], {"loss_scale": math.nan}),
        (POSSIBLE[6], {"size_bytes": 10**400}),
        (POSSIBLE[7], {"step": -3}),
        (POSSIBLE[8], {"epoch": 2**60}),
        (POSSIBLE[-1], {"round": MAX_STEPS + 1}),
    ],
)
def test_impossible_numbers_are_refused(event: Event, changes: dict[str, object]) -> None:
    limits = EventLimits()
    assert limits.admit(event.model_copy(update=changes), 1.0) is None
    assert limits.refused == 1
    assert limits.first_problem.startswith(f"{event.kind}: ")
    assert limits.admit(event, 1.0) is event, "it costs only this event"


def test_many_small_increments_are_limited_like_a_large_one() -> None:
    limits = EventLimits()
    steps = StepStats(step=1, applied=MAX_STEPS_PER_SECOND, loss_scale=1.0, precision="fp32")
    admitted = [limits.admit(steps, 5.0) for _ in range(100)]
    assert sum(event is not None for event in admitted) == 15, "5 s, and the slack"
    assert limits.admit(steps, 6.0) is steps
    assert limits.refused == 85


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": "Critic"}, "a part cannot be called 'Critic'"),
        ({"name": ""}, "a part cannot be called ''"),
        ({"name": "a" * 33}, "a part cannot be called"),
        ({"name": 'x"} 1\n'}, "a part cannot be called"),
        ({"name": ACTOR.name}, "two parts have one name"),
        ({"attempted": 61}, "more steps of parts than steps"),
        ({"attempted": 10**400}, "attempted is not between 0 and 2.14748e+09"),
        ({"attempted": -1}, "attempted is not between"),
        ({"overflow": 60}, "more skipped steps of a part than steps"),
        ({"nonfinite_loss": -3}, "nonfinite_loss is not between"),
        ({"loss_scale": math.nan}, "loss_scale is not between"),
    ],
)
def test_impossible_parts_are_refused(changes: dict[str, object], problem: str) -> None:
    limits = EventLimits()
    critic = CRITIC.model_copy(update=changes)
    assert limits.admit(IN_PARTS.model_copy(update={"parts": (critic, ACTOR)}), 1.0) is None
    assert limits.first_problem.startswith(f"step_stats: {problem}")
    assert limits.admit(IN_PARTS, 1.0) is IN_PARTS, "it costs only this event"


@given(st.lists(st.lists(st.text("ab-Z", max_size=3), max_size=9), max_size=20))
def test_an_attempt_has_no_more_parts_than_a_job_may_have(events: list[list[str]]) -> None:
    limits, known = EventLimits(), set[str]()
    for names in events:
        parts = tuple(PartStats(name=name) for name in names)
        admitted = limits.admit(STEPS.model_copy(update={"parts": parts, "seconds": 0.0}), 9.0)
        allowed = len(set(names)) == len(names) and all(map(PART_NAME.fullmatch, names))
        allowed = allowed and len(known | set(names)) <= MOST_PARTS
        assert (admitted is not None) == allowed
        known |= set(names) if allowed else set()


def test_an_age_from_a_clock_that_was_set_back_still_allows_the_slack() -> None:
    assert EventLimits().admit(STEPS, -3600.0) is STEPS


def test_long_lists_are_cut_but_keep_the_primary_metric() -> None:
    limits = EventLimits()
    metrics = {f"metric_{n}": float(n) for n in range(20_000)}
    event = limits.admit(Evaluated(epoch=1, metrics=metrics, primary="metric_19999"), 1.0)
    assert isinstance(event, Evaluated)
    assert len(event.metrics) == MAX_NAMES
    assert event.metrics["metric_19999"] == 19999.0
    published = limits.admit(Published(published=True, reason="", metrics=metrics), 1.0)
    assert isinstance(published, Published)
    assert len(published.metrics) == MAX_NAMES
    notice = limits.admit(Notice(event="odd", fields=dict.fromkeys(metrics, "")), 1.0)
    assert isinstance(notice, Notice)
    assert len(notice.fields) == MAX_FIELDS
    assert (limits.cut, limits.refused) == (3, 0)


def test_a_long_name_is_cut_in_the_same_way_everywhere() -> None:
    name = "m" * 2 * MAX_NAME_LENGTH
    event = EventLimits().admit(Evaluated(epoch=1, metrics={name: 0.5}, primary=name), 1.0)
    assert isinstance(event, Evaluated)
    assert event.metrics == {event.primary: 0.5}
    assert len(event.primary) == MAX_NAME_LENGTH


NUMBERS = st.one_of(st.integers(), st.floats(), st.just(10**400), st.none())


@given(
    st.sampled_from(POSSIBLE),
    st.dictionaries(st.sampled_from([n for e in POSSIBLE for n in type(e).model_fields]), NUMBERS),
    st.floats(),
)
def test_no_numbers_break_the_limits(
    event: Event, changes: dict[str, object], age_seconds: float
) -> None:
    fields = event.model_dump(mode="json") | changes | {"kind": event.kind}
    try:
        read = EVENT_ADAPTER.validate_python(fields)
    except ValueError:
        return
    EventLimits().admit(read, age_seconds)
