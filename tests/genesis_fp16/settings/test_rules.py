"""Which settings contradict each other, and what is no contradiction."""

import pytest

from genesis_fp16.settings.rules import INITIAL_LOSS_SCALE, contradicted

MIN, SCALE = "fp16_min_loss_scale", "fp16_loss_scale"
SUSTAINED, STORM = "guard_sustained_ratio", "guard_storm_ratio"


@pytest.mark.parametrize(
    ("field", "value", "others", "found"),
    [
        (STORM, 0.1, {SUSTAINED: 0.2}, ("below", SUSTAINED)),
        (SUSTAINED, 0.2, {STORM: 0.1}, ("above", STORM)),
        (SUSTAINED, 0.2, {STORM: 0.2}, None),
        (SUSTAINED, 0.2, {}, None),  # the other is not known, so nothing is said of it
        (SUSTAINED, 0.2, {STORM: "high"}, None),  # that one is wrong by itself
        (STORM, 0.3, {SUSTAINED: 0.2, MIN: 8.0, SCALE: 4.0}, None),  # it has no part in that
        (MIN, 2 * INITIAL_LOSS_SCALE, {SCALE: None}, ("above", SCALE)),
        (MIN, 2 * INITIAL_LOSS_SCALE, {}, None),
        (SCALE, None, {MIN: INITIAL_LOSS_SCALE}, None),
    ],
)
def test_two_settings_are_in_order(field, value, others, found) -> None:
    assert contradicted(field, value, others) == found
