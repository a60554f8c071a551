"""Examples of docstrings, run in the real sandbox."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agents.se_darwin.certainty.examples import Examples
from agents.se_darwin.sandbox import Sandbox
from agents.se_darwin.solution.request import EvolutionRequest
from agents.se_darwin.tasks import RepairTask
from agents.se_darwin.tasks.evaluation import Evaluation

CODE = '''
BASE = 10


def solve(x, **names):
    """Ten times x.

    >>> import nothing_that_exists
    >>> y = 2
    >>> solve(y)
    20
    >>> solve(1 + y)
    30
    >>> solve({"a": 1, "b": 2})
    {'b': 20, 'a': 10}
    >>> solve(-1)
    Traceback (most recent call last):
        ...
    ValueError: below zero
    >>> solve("shown")
    shown
    >>> undefined(solve(1))
    10
    >>> open("numbers.txt").read()
    '7'
    >>> solve(object())
    <object object at 0x7f0000000000>
    >>> solve(range(50))  # doctest: +ELLIPSIS
    [0, ...]
    """
    if x == "shown":
        print(x)
        return None
    if isinstance(x, dict):
        return {key: BASE * value for key, value in x.items()}
    if x < 0:
        raise ValueError("below zero")
    return BASE * x
'''
TESTS = "from program import solve\ndef test_a():\n    assert solve(1) == 10\n"


def task_of(code: str, sandbox: Sandbox) -> RepairTask:
    return EvolutionRequest(code=code, function="solve", test_code=TESTS).task(sandbox, 5.0)


@pytest.fixture(scope="module")
def task(sandbox: Sandbox) -> RepairTask:
    return task_of(CODE, sandbox)


def contradicted(task: RepairTask, sandbox: Sandbox, old: str, new: str) -> list[str]:
    examples = Examples.of(task, sandbox)
    assert examples is not None
    [given] = task.evaluate(sandbox, [(frozenset(), CODE)])
    program: Evaluation = replace(given, source=CODE.replace(old, new))
    assert old in CODE
    numbers = examples.contradicted(program, sandbox)
    return [examples.calls[number] for number in sorted(numbers)]


@pytest.mark.parametrize(
    ("old", "new", "calls"),
    [
        ("BASE * x", "BASE * x", []),
        ("return BASE * x", "return x * 20 - 20", ["solve(1 + y)"]),
        ("BASE * value", "value", ['solve({"a": 1, "b": 2})']),
        ('ValueError("below', 'KeyError("below', ["solve(-1)"]),
        ("x < 0", "x < -5", ["solve(-1)"]),
        ("print(x)", "print(x, x)", ['solve("shown")']),
    ],
)
def test_what_a_program_does_otherwise_than_its_docstring_shows(
    task: RepairTask, sandbox: Sandbox, old: str, new: str, calls: list[str]
) -> None:
    assert contradicted(task, sandbox, old, new) == calls


@pytest.mark.parametrize(
    "docstring", ["Ten times x.", ">>> x = 1", ">>>wrong", ">>> solve(\n20", ">>> solve(1) +\n20"]
)
def test_docstrings_without_usable_examples(sandbox: Sandbox, docstring: str) -> None:
    code = f"def solve(x):\n    {docstring!r}\n    return 10 * x\n"
    assert Examples.of(task_of(code, sandbox), sandbox) is None


def test_calls_without_a_test_module_have_no_examples(sandbox: Sandbox) -> None:
    request = EvolutionRequest(code=CODE, function="solve", tests=[((1,), 10)])
    assert Examples.of(request.task(sandbox, 5.0), sandbox) is None
