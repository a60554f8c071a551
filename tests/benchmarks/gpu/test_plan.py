"""The times of the sections."""

from benchmarks.gpu.plan import (
    RESERVE_SECONDS,
    SECTIONS,
    TOTAL_SECONDS,
    Section,
    allowed_seconds,
)

PLAN = [Section(name=name, module="", seconds=100.0) for name in "abc"]


def test_all_sections_fit_if_each_takes_all_of_its_time() -> None:
    left = TOTAL_SECONDS
    for place, section in enumerate(SECTIONS):
        allowed = allowed_seconds(SECTIONS, place, left)
        assert allowed >= section.seconds
        left -= allowed
    assert left >= RESERVE_SECONDS


def test_a_section_gets_what_others_left_up_to_twice_its_own() -> None:
    assert allowed_seconds(PLAN, 1, 215.0) == 100.0
    assert allowed_seconds(PLAN, 1, 275.0) == 160.0
    assert allowed_seconds(PLAN, 1, 900.0) == 200.0
    assert allowed_seconds(PLAN, 1, 115.0) == 0.0, "the last one keeps its time"
    assert allowed_seconds(PLAN, 2, 40.0) == 25.0
    assert allowed_seconds(PLAN, 2, 10.0) == 0.0
