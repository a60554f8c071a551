"""Reasons for the audit trail."""

import pytest

from genesis_fp16.domain.reason import LONGEST_REASON, ReasonMissingError, one_line


def test_a_reason_is_one_line_without_control_characters() -> None:
    assert one_line(" a\n b\x1b[2J ") == "a b"
    assert len(one_line("x" * 10_000)) <= LONGEST_REASON


@pytest.mark.parametrize("empty", ["", " \n\t", "\x07"])
def test_an_empty_reason_is_refused(empty: str) -> None:
    with pytest.raises(ReasonMissingError, match="give a reason"):
        one_line(empty)
