"""What a caller of `evolve_solution` hands over, checked at the door."""

from __future__ import annotations

import ast
import sys
from dataclasses import replace

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from agents.se_darwin.edits import EditSpace
from agents.se_darwin.sandbox import Limits, Sandbox, TestCase
from agents.se_darwin.tasks import RepairTask

_LEAST_CPU_SECONDS = 0.05
_CPU_MARGIN = 20


class CallCase(BaseModel):
    """One test: a call, and the value it returns or the exception it raises.

    A pair ``(args, value)`` is short for ``{"args": args, "expected": value}``.

    Attributes:
        args: Positional arguments; literals only.
        kwargs: Keyword arguments; literals only.
        expected: Value to be returned. Numbers agree to 12 digits.
        raises: Name of the exception to be raised instead.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)
    args: tuple[object, ...] = ()
    kwargs: dict[str, object] = Field(default_factory=dict)
    expected: object = None
    raises: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_pair(cls, value: object) -> object:
        if isinstance(value, tuple | list) and len(value) == 2:
            return {"args": value[0], "expected": value[1]}
        return value

    @model_validator(mode="after")
    def _check_literals(self) -> CallCase:
        try:
            ast.literal_eval(repr((self.args, self.kwargs)))
        except (ValueError, SyntaxError):
            raise ValueError(
                f"arguments must be plain literals to reach the sandbox, got {self.args!r} and "
                f"{self.kwargs!r}"
            ) from None
        return self

    def case(self) -> TestCase:
        """The same for the sandbox."""
        if self.raises is None:
            made = TestCase.returning(self.args, self.expected)
        else:
            made = TestCase(arguments=self.args, kind="raise", expected=self.raises)
        return replace(made, keywords=self.kwargs)


class EvolutionRequest(BaseModel):
    """The context of `SEDarwinAgent.evolve_solution`.

    Attributes:
        code: Text of a module that defines the function; other definitions may stand beside it.
        function: Name of the function to repair, at the top level of *code*.
        tests: What it must do; see `CallCase`.
        hidden_tests: Checked at the end only, never searched on.
        max_evaluations: Most candidates to run.
        seed: The same seed, the same search.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    code: str
    function: str
    tests: tuple[CallCase, ...] = Field(min_length=1)
    hidden_tests: tuple[CallCase, ...] = ()
    max_evaluations: int = Field(default=500, ge=1)
    seed: int = 0

    @field_validator("code")
    @classmethod
    def _check_code(cls, code: str) -> str:
        foreign = sorted(
            {name for name in _imports(code) if name.split(".")[0] not in sys.stdlib_module_names}
        )
        if foreign:
            raise ValueError(
                f"the sandbox has the standard library only, but the code imports "
                f"{', '.join(foreign)}: pass the function without it"
            )
        return code

    def modules(self) -> list[str]:
        """Standard-library modules that *code* imports."""
        return sorted(_imports(self.code))

    def task(self, sandbox: Sandbox, timeout_seconds: float) -> RepairTask:
        """The repair task; a candidate gets twenty times the CPU time of the given program.

        Args:
            sandbox: Where the given program is timed.
            timeout_seconds: The most that a candidate gets.

        Raises:
            ValueError: *code* does not define the function.
        """
        task = RepairTask(
            name=self.function,
            function=self.function,
            module=None,
            space=EditSpace(self.code, self.function),
            tests=tuple(test.case() for test in self.tests),
            hidden_tests=tuple(test.case() for test in self.hidden_tests),
            limits=Limits(cpu_seconds=timeout_seconds, wall_seconds=2 * timeout_seconds),
        )
        [given] = task.evaluate(sandbox, [(frozenset(), task.space.source)])
        needed = max(_LEAST_CPU_SECONDS, _CPU_MARGIN * given.execution.cpu_seconds)
        limits = Limits(cpu_seconds=min(timeout_seconds, needed), wall_seconds=2 * timeout_seconds)
        return replace(task, limits=limits)


def _imports(code: str) -> set[str]:
    try:
        tree = ast.parse(code)
    except SyntaxError as error:
        raise ValueError(f"code is not Python: {error}") from None
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found
