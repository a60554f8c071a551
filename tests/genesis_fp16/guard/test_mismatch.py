"""Samples that agree on too much rounding between trainer and rollout, and what is changed."""

import pytest

from genesis_fp16.domain.guard import Detection, GuardSettings
from genesis_fp16.guard.mismatch import MismatchDetector

LIMITS = GuardSettings()


@pytest.fixture
def found(mismatched):
    def add(
        detector: MismatchDetector, *pair, on_probation=False, allowed=False, **changes
    ) -> Detection | None:
        return detector.add(
            mismatched(*pair, **changes).report,
            LIMITS,
            on_probation=on_probation,
            other_half_allowed=allowed,
        )

    return add


def test_three_samples_in_a_row_name_the_role_and_its_cure(found) -> None:
    detector = MismatchDetector()
    assert [found(detector), found(detector)] == [None, None]
    detection = found(detector)
    assert detection.trigger == "mismatch"
    assert detection.roles == {"rollout": "fp32"}
    assert detection.numbers["guilty"] == ["rollout"]
    assert detection.numbers["shares"]["rollout"] == pytest.approx(0.99, abs=0.01)
    assert detection.numbers["excess"] == [pytest.approx(2.02e-3)] * 3
    assert detection.summary == (
        "trainer (fp16) and rollout (bf16) disagree by 0.00202 nats per token, and by 1e-09 if "
        "both compute in FP32; the limit for the difference is 0.001, exceeded in 3 samples in a "
        "row. The rounding of rollout in bf16 causes it. Rollout changes to FP32: on the same "
        "tokens 1% of the difference remains"
    )


def test_the_other_half_type_only_where_nobody_chose_one(found) -> None:
    free, chosen = MismatchDetector(), MismatchDetector()
    for detector, allowed, roles in (
        (free, True, {"policy": "fp16", "rollout": "fp16"}),
        (chosen, False, {}),
    ):
        found(detector, "bf16", "bf16", allowed=allowed)
        found(detector, "bf16", "bf16", allowed=allowed)
        detection = found(detector, "bf16", "bf16", allowed=allowed)
        assert detection.roles == roles
        cured = "Policy and rollout change to FP16" if allowed else "Every role changes to FP32"
        assert cured in detection.summary
    assert "The rounding of policy in bf16 and rollout in bf16 causes it" in detection.summary


def test_one_sample_within_the_limit_ends_the_row(found) -> None:
    detector = MismatchDetector()
    sequence = ["bf16", "bf16", "fp16", "bf16", "bf16"]
    assert [found(detector, "fp16", each) for each in sequence] == [None] * 5
    assert found(detector) is not None


def test_reports_of_other_precisions_begin_a_new_row(found) -> None:
    detector = MismatchDetector()
    for pair in (("fp16", "bf16"), ("fp16", "bf16"), ("bf16", "fp16"), ("bf16", "fp16")):
        assert found(detector, *pair) is None
    assert found(detector, "bf16", "fp16").numbers["guilty"] == ["policy"]


def test_what_fp32_does_not_end_is_no_reason_to_change_a_precision(found) -> None:
    """A wrong temperature, or weights from many rounds ago."""
    detector = MismatchDetector()
    assert [found(detector, floor=0.5) for _ in range(9)] == [None] * 9


def test_on_probation_one_sample_is_enough(found) -> None:
    assert found(MismatchDetector(), on_probation=True) is not None


def test_samples_from_before_the_change_do_not_count_again(found) -> None:
    detector = MismatchDetector()
    assert [found(detector) for _ in range(3)][-1] is not None
    after = MismatchDetector(detector.detected)
    assert [found(after) for _ in range(9)] == [None] * 9
    others = [found(after, "bf16", "fp16") for _ in range(3)]
    assert others[-1] is not None, "another pair does"
