from __future__ import annotations

import contextlib

import pytest

from infrastructure.agent_contract.command import CommandContext, CommandError


def test_an_error_carries_its_exit_code():
    assert CommandError("no").exit_code == 1
    assert CommandError("no", 75).exit_code == 75
    assert str(CommandError("no", 75)) == "no"


@pytest.mark.parametrize("exit_code", [0, -1, 256, 1 << 40])
def test_an_exit_code_that_no_shell_can_show_becomes_one(exit_code):
    assert CommandError("no", exit_code).exit_code == 1
    assert CommandError("no", 255).exit_code == 255


def test_an_author_can_make_a_context_for_tests():
    answers = []
    context = CommandContext(
        find_agent={}.__getitem__,
        as_json=True,
        print_json=answers.append,
        defer_interrupts=lambda: contextlib.nullcontext(lambda: False),
    )
    context.print_json({"x": 1})
    assert answers == [{"x": 1}]
    with context.defer_interrupts() as interrupted:
        assert not interrupted()
    with pytest.raises(LookupError):
        context.find_agent("nobody")
