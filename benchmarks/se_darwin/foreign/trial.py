"""A test module run on a program in the sandbox, without any search."""

from __future__ import annotations

from contextlib import suppress

from agents.se_darwin.sandbox import Sandbox
from agents.se_darwin.solution.request import EvolutionRequest
from benchmarks.se_darwin.foreign.bug import MODULE, ForeignBug

_SECONDS = 5.0


def passed_checks(
    code: str, function: str, test_code: str, *, sandbox: Sandbox | None = None
) -> list[bool]:
    """Return which checks of *test_code* the program *code* passes, in order.

    Args:
        code: Text of the program.
        function: Name of the function that the tests call.
        test_code: Test module.
        sandbox: Sandbox with all modules that both import; None opens one.

    Raises:
        ValueError: The sandbox cannot run these tests, or leaves one out; the message says why.
    """
    request = EvolutionRequest(code=code, function=function, module=MODULE, test_code=test_code)
    if sandbox is None:
        with request.sandbox() as opened:
            return passed_checks(code, function, test_code, sandbox=opened)
    task = request.task(sandbox, _SECONDS)
    if task.suite and task.suite.left_out:
        raise ValueError(f"not run: {'; '.join(task.suite.left_out)}")
    [evaluation] = task.evaluate(sandbox, [(frozenset(), task.space.source)])
    return list(evaluation.passed)


def passes(code: str, function: str, test_code: str, *, sandbox: Sandbox | None = None) -> bool:
    """Whether the program passes every check; False if the tests cannot be run."""
    with suppress(ValueError):
        return all(passed_checks(code, function, test_code, sandbox=sandbox))
    return False


def problem_of(bug: ForeignBug, *, sandbox: Sandbox | None = None) -> str:
    """Return what keeps *bug* from being one; empty if nothing does."""
    function, hidden = bug.function, bug.hidden_test_code
    if passes(bug.code, function, bug.test_code, sandbox=sandbox):
        return "the wrong program passes the visible tests"
    if not bug.right_code:
        return ""
    for name, tests in (("visible", bug.test_code), ("hidden", hidden)):
        try:
            passed = passed_checks(bug.right_code, function, tests, sandbox=sandbox)
        except ValueError as error:
            return f"the {name} tests cannot be run: {error}"
        if not all(passed):
            return f"the right program fails {passed.count(False)} {name} checks"
    return ""
