from __future__ import annotations

from collections.abc import Callable

import pytest

from agents.se_darwin.edits import EditSpace
from agents.se_darwin.sandbox import Execution, Output
from agents.se_darwin.tasks.evaluation import Evaluation

CODE = "def solve(x):\n    return x + 1\n"


@pytest.fixture
def repair() -> Callable[..., Evaluation]:
    """A program that passes its tests, with a number of edits; it was not run."""
    space = EditSpace(CODE, "solve")

    def make(edits: int = 1, passed: tuple[bool, ...] = (True,) * 3) -> Evaluation:
        return Evaluation(
            edits=frozenset(space.edits[:edits]),
            source=CODE,
            passed=passed,
            execution=Execution(outputs=(), end="exit"),
            symptoms=(),
        )

    return make


@pytest.fixture
def outputs() -> Callable[..., tuple[Output | None, ...]]:
    """Results: a text is a value, ``!Name`` an exception, ``?`` opaque, None no end."""

    def make(*texts: str | None) -> tuple[Output | None, ...]:
        return tuple(
            (
                text
                and Output(
                    kind={"!": "raise", "?": "strange"}.get(text[0], "value"),
                    text=text.removeprefix("!"),
                    arguments="[]",
                )
            )
            or None
            for text in texts
        )

    return make
