from __future__ import annotations

import ast
from typing import Any

import pytest
from pydantic import ValidationError

from agents.se_darwin.sandbox import Sandbox
from agents.se_darwin.solution.request import (
    EXAMPLE,
    CallCase,
    EvolutionRequest,
    EvolutionRequestError,
)

CODE = "def solve(x):\n    return x"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"code": "import nowhere_1\n" + CODE}, "nowhere_1"),
        ({"code": "def solve(:"}, "code is not"),
        ({"tests": []}, "either tests"),
        ({"tests": [((object(),), 1)]}, "plain literals"),
        ({"timeout_seconds": float("inf")}, "timeout_seconds\n.* 3600"),
        ({"max_evaluations": 0}, "max_evaluations\n.* 1"),
        ({"budget": 3}, "budget\n"),
    ],
)
def test_a_wrong_request_is_refused_by_name(change: dict[str, object], message: str) -> None:
    request = {"code": CODE, "function": "solve", "tests": [((1,), 1)]} | change
    with pytest.raises(ValidationError, match=message):
        EvolutionRequest.model_validate(request)


@pytest.mark.parametrize(
    ("context", "problems"),
    [
        (None, ["code is missing", "function is missing"]),
        (
            {"code": CODE, "function": "solve", "test": []},
            [f"test is not a field; fields are {', '.join(EvolutionRequest.model_fields)}"],
        ),
        (
            "the code",
            ["context: Input should be a valid dictionary or instance of EvolutionRequest"],
        ),
        ({"code": CODE, "function": "solve", "tests": 3}, ["tests: Input should be a valid tuple"]),
    ],
)
def test_a_call_of_another_shape_is_answered_with_an_example(
    context: Any, problems: list[str]
) -> None:
    with pytest.raises(EvolutionRequestError) as caught:
        EvolutionRequest.from_context(context)
    assert caught.value.problems == problems
    assert str(caught.value).endswith(f". A call looks like this:\n{EXAMPLE}")
    assert "pydantic" not in str(caught.value)


def test_a_wrong_value_needs_no_example() -> None:
    with pytest.raises(EvolutionRequestError, match="either tests") as caught:
        EvolutionRequest.from_context({"code": CODE, "function": "solve"})
    assert EXAMPLE not in str(caught.value)


def test_the_example_is_a_call_that_works(sandbox: Sandbox) -> None:
    call = ast.parse(EXAMPLE, mode="eval").body
    assert isinstance(call, ast.Await)
    assert isinstance(call.value, ast.Call)
    request = EvolutionRequest.from_context(ast.literal_eval(call.value.args[1]))
    [given] = request.task(sandbox, 5.0).evaluate(sandbox, [(frozenset(), request.code)])
    assert list(given.passed) == [True, False]


def test_a_missing_function_is_named(sandbox: Sandbox) -> None:
    request = EvolutionRequest.model_validate(
        {"code": CODE, "function": "other", "tests": [((1,), 1)]}
    )
    with pytest.raises(ValueError, match="no function 'other'"):
        request.task(sandbox, 1.0)


def test_the_forms_of_a_test() -> None:
    pair = CallCase.model_validate(([1], 2)).case()
    mapping = CallCase.model_validate({"args": [1], "expected": 2}).case()
    raising = CallCase.model_validate({"kwargs": {"x": 1}, "raises": "ValueError"}).case()
    assert pair == mapping
    assert (raising.kind, raising.expected, raising.keywords) == ("raise", "ValueError", {"x": 1})
