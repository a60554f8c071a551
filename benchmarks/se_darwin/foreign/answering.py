"""Answers to questions of `evolve`: what the right program does, as a person would write it."""

from __future__ import annotations

import ast
from contextlib import suppress

from agents.se_darwin.certainty.behaviour import Replay
from agents.se_darwin.certainty.inputs import ProgramInput
from agents.se_darwin.certainty.rendering import render_result
from agents.se_darwin.sandbox import Output
from agents.se_darwin.solution.request import EvolutionRequest
from benchmarks.se_darwin.foreign.bug import MODULE, ForeignBug
from benchmarks.se_darwin.foreign.trial import passes

_SECONDS = 5.0


def answer(bug: ForeignBug, call: str, number: int = 1) -> str:
    """Return a test of what the right program of *bug* does on *call*, to add to the visible ones.

    Empty if a person would give none: no right program is known, it fails by accident (it has no
    ``raise`` of the exception), or it does not pass the test, as with results that have no text.

    Args:
        bug: The bug.
        call: A call of its function, as a question names it.
        number: Number of the answer, for the name of the test.
    """
    if not bug.right_code or not _is_expression(call):
        return ""
    head = f"import pytest\nfrom {MODULE} import {bug.function.partition('.')[0]}\n\n\n"
    head += f"def test_answer_{number}():\n"
    request = EvolutionRequest(
        code=bug.right_code, function=bug.function, module=MODULE, test_code=f"{head}    {call}\n"
    )
    with request.sandbox() as sandbox, suppress(ValueError):  # such as a name that is not defined
        task = request.task(sandbox, _SECONDS)
        calls = [recorded for _, recorded in task.record(sandbox, task.space.source)]
        if len(calls) != 1:
            return ""
        inputs = [ProgramInput(call=calls[0], origin=0, changes=0)]
        replay = Replay(task=task, sandbox=sandbox, inputs=inputs, recorded=1)
        [[output]] = replay.run([task.space.source])
        test = head + _body(bug, call, output)
        if passes(bug.right_code, bug.function, test, sandbox=sandbox):
            return test
    return ""


def _body(bug: ForeignBug, call: str, output: Output | None) -> str:
    if output is None:
        raise ValueError(f"the right program does not end on {call}")
    if output.kind == "raise":
        if f"raise {output.text}" not in bug.right_code:
            raise ValueError(f"the right program does not mean to raise {output.text} on {call}")
        return f"    with pytest.raises({output.text}):\n        {call}\n"
    return f"    assert {call} == {render_result(output).removeprefix('returns ')}\n"


def _is_expression(text: str) -> bool:
    try:
        ast.parse(text, mode="eval")
    except SyntaxError:  # such as a list that contains itself
        return False
    return True
