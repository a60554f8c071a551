from __future__ import annotations

from dataclasses import replace

import pytest

from agents.se_darwin.sandbox import Sandbox
from tests.agents.se_darwin.suites import PROGRAM, prepare, run

ENDLESS = """
def test_a():
    assert solve(1) == 2
    assert solve(2) == 3
    assert solve(3) == 4
def test_b():
    with pytest.raises(ValueError):
        solve(2)
def test_c():
    assert solve(1) == 2
"""


@pytest.mark.parametrize("catches", ["while x == 2: pass", "while x == 2: x = stay(x)"])
def test_an_endless_check_costs_itself_in_the_programs_process(
    sandbox: Sandbox, catches: str
) -> None:
    """Also with coverage, and if the candidate catches the interrupt once."""
    program = PROGRAM.replace("return x + 1", f"{catches}\n    return x + 1")
    program += """
def stay(x):
    try:
        while not caught:
            pass
    except BaseException:
        caught.append(x)
    return x
caught = []
"""
    suite = prepare(sandbox, f"import pytest\nfrom mod import solve\n{ENDLESS}")
    execution = run(sandbox, replace(suite, within=True), program, coverage=True)
    kinds = [output.kind if output else "none" for output in execution.outputs]
    assert kinds == ["value", "endless", "value", "endless", "value"]
    assert execution.hung
    assert execution.end == "exit"
    outputs = [output for output in execution.outputs if output]
    line = 1 + next(n for n, text in enumerate(program.split("\n")) if "while x == 2" in text)
    assert all(line in output.lines for output in outputs)
