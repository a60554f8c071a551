"""The rule that names the guilty role, on the figures that a small model gives on a CPU."""

import math
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from infrastructure.events import EVENT_ADAPTER
from infrastructure.events.event import MismatchMeasured
from infrastructure.events.mismatch_report import Combination, MismatchReport, attribute
from infrastructure.events.precision_state import PrecisionName

FLOOR = 1e-13
K3 = {  # (policy, rollout); either order gives about the same
    ("bf16", "bf16"): 6.5e-5,
    ("bf16", "fp16"): 2.5e-5,
    ("bf16", "fp32"): 2.4e-5,
    ("fp16", "fp16"): 1.0e-6,
    ("fp16", "fp32"): 3.5e-7,
    ("fp32", "fp32"): FLOOR,
}


def report(policy: PrecisionName, rollout: PrecisionName, **changes: object) -> MismatchReport:
    k3 = {**{(b, a): value for (a, b), value in K3.items()}, **K3}
    fields: dict[str, object] = {
        "policy": policy, "rollout": rollout, "tokens": 640, "sequences": 64, "k1": 1e-5,
        "k2": k3[policy, rollout], "k3": k3[policy, rollout], "mean_difference": 4e-4,
        "max_difference": 0.01, "pearson": 0.999, "chi2_token": 1e-4, "chi2_sequence": 1e-2,
        "effective_sample_size": 0.99, "sequence_std": 0.1, "slope": math.nan,
        "combinations": [
            {"policy": a, "rollout": b, "k3": value, "mean_difference": 1e-4}
            for (a, b), value in k3.items()
        ],
    }  # fmt: skip
    return MismatchReport.model_validate({**fields, **changes})


def test_the_floor_tells_rounding_from_everything_else() -> None:
    found = report("bf16", "bf16")
    assert found.floor_k3 == FLOOR
    assert found.excess_k3 == pytest.approx(6.5e-5)
    assert found.is_rounding
    stale = Combination(policy="fp32", rollout="fp32", k3=6e-5, mean_difference=4e-4)
    other_cause = found.model_copy(update={"combinations": (stale,)})
    assert other_cause.excess_k3 == pytest.approx(5e-6)
    assert not other_cause.is_rounding


def test_without_a_floor_nothing_is_blamed_on_rounding() -> None:
    found = report("bf16", "bf16", combinations=[])
    assert math.isnan(found.floor_k3)
    assert math.isnan(found.excess_k3)
    assert not found.is_rounding
    assert attribute([found], other_half_allowed=True) is None


@pytest.mark.parametrize(
    ("policy", "rollout", "guilty", "with_other_half", "without"),
    [
        ("bf16", "bf16", ("policy", "rollout"), ("fp16", "fp16"), ("fp32", "fp32")),
        ("fp16", "bf16", ("rollout",), ("fp16", "fp16"), ("fp16", "fp32")),
        ("bf16", "fp16", ("policy",), ("fp16", "fp16"), ("fp32", "fp32")),
        ("bf16", "fp32", ("policy",), ("fp16", "fp16"), ("fp32", "fp32")),
        ("fp16", "fp16", ("policy", "rollout"), ("fp32", "fp32"), ("fp32", "fp32")),
        ("fp32", "bf16", ("rollout",), ("fp32", "fp32"), ("fp32", "fp32")),
    ],
)
def test_the_guilty_role_and_the_smallest_cure(
    policy: PrecisionName,
    rollout: PrecisionName,
    guilty: tuple[str, ...],
    with_other_half: tuple[str, str],
    without: tuple[str, str],
) -> None:
    reports = [report(policy, rollout)] * 3
    for allowed, expected in ((True, with_other_half), (False, without)):
        verdict = attribute(reports, other_half_allowed=allowed)
        assert verdict is not None
        assert verdict.guilty == guilty
        assert (verdict.policy, verdict.rollout) == expected
        assert verdict.remaining <= 0.1


def test_of_two_roles_that_suffice_the_one_that_ends_more_is_guilty() -> None:
    found = report("fp16", "bf16", k3=1e-3)
    ends = {("fp32", "bf16"): 5e-5, ("fp16", "fp32"): 1e-5, ("fp32", "fp32"): FLOOR}
    combinations = tuple(
        Combination(policy=policy, rollout=rollout, k3=k3, mean_difference=1e-4)
        for (policy, rollout), k3 in ends.items()
    )
    verdict = attribute(
        [found.model_copy(update={"combinations": combinations})], other_half_allowed=False
    )
    assert verdict is not None
    assert verdict.shares == pytest.approx({"policy": 0.95, "rollout": 0.99})
    assert verdict.guilty == ("rollout",)


def test_the_verdict_names_what_changes() -> None:
    found = report("fp16", "bf16")
    verdict = attribute([found], other_half_allowed=False)
    assert verdict is not None
    assert verdict.changes(found) == {"rollout": "fp32"}
    assert verdict.shares["rollout"] > 0.95
    assert verdict.shares["policy"] < 0.1


def test_a_cure_must_hold_over_all_reports() -> None:
    good, bad = report("fp16", "bf16"), report("fp16", "bf16")
    worse = [
        each.model_copy(update={"k3": 2e-5}) if each.rollout == "fp16" else each
        for each in bad.combinations
    ]
    bad = bad.model_copy(update={"combinations": tuple(worse)})
    verdict = attribute([good, bad], other_half_allowed=True)
    assert verdict is not None
    assert (verdict.policy, verdict.rollout) == ("fp16", "fp32")


def test_an_infinite_mismatch_has_a_cause_too() -> None:
    """BF16 gave a sampled token no probability; FP32 gives it some."""
    found = report("fp16", "bf16", k3=math.inf, k2=math.inf)
    verdict = attribute([found], other_half_allowed=False)
    assert verdict is not None
    assert verdict.changes(found) == {"rollout": "fp32"}


def test_roles_in_fp32_have_no_excess() -> None:
    found = report("fp32", "fp32")
    assert found.excess_k3 == 0.0
    assert attribute([found], other_half_allowed=True) is None


def test_it_travels_as_an_event_with_what_is_not_a_number() -> None:
    event = MismatchMeasured(step=4, round=2, report=report("bf16", "bf16", chi2_sequence=math.inf))
    [again] = [EVENT_ADAPTER.validate_json(event.model_dump_json())]
    assert isinstance(again, MismatchMeasured)
    assert math.isnan(again.report.slope)
    assert again.report.chi2_sequence == math.inf
    assert again.report.combinations == event.report.combinations


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": 0},
        {"k3": -1.0},
        {"k3": math.nan},
        {"mean_difference": 1.5},
        {"effective_sample_size": 2.0},
        {"combinations": [{"policy": "int8", "rollout": "fp32", "k3": 0, "mean_difference": 0}]},
        {
            "combinations": [{"policy": "fp32", "rollout": "fp32", "k3": 0, "mean_difference": 0}]
            * 10
        },
    ],
)
def test_impossible_values_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        report("bf16", "bf16", **changes)


_NAMES = st.sampled_from(get_args(PrecisionName))
_K3 = st.floats(0, allow_nan=False)


@given(_NAMES, _NAMES, _K3, st.dictionaries(st.tuples(_NAMES, _NAMES), _K3), st.booleans())
def test_every_verdict_ends_what_it_blames(
    policy: PrecisionName,
    rollout: PrecisionName,
    k3: float,
    measured: dict[tuple[PrecisionName, PrecisionName], float],
    allowed: bool,
) -> None:
    combinations = [
        {"policy": a, "rollout": b, "k3": value, "mean_difference": 0}
        for (a, b), value in measured.items()
    ]
    found = report(policy, rollout, k3=k3, combinations=combinations)
    verdict = attribute([found], other_half_allowed=allowed)
    if verdict is None:
        return
    assert ("fp32", "fp32") in measured
    assert 0 <= verdict.remaining <= 0.1
    used = {policy, rollout, "fp32"}
    assert allowed or {verdict.policy, verdict.rollout} <= used
    assert verdict.changes(found)
