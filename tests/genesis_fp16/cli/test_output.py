"""Tables keep their shape whatever a plugin has worded."""

import pytest

from genesis_fp16.cli.output import LONGEST_CELL, print_line, print_table


def test_cells_are_clean_and_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["why"], [["\x1b[2J" + "x" * 5000]])
    print_table(["why"], [["y" * 1000]], longest=2000)
    cut, whole = capsys.readouterr().out.split("why\n")[1:]
    assert cut == "x" * (LONGEST_CELL - 1) + "…\n"
    assert whole == "y" * 1000 + "\n"


def test_a_line_has_no_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_line("a\x1b[2J\nb\ud800")
    assert capsys.readouterr().out == "a b\n"
