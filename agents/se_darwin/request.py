"""What a caller of `evolve_solution` hands over, checked at the door."""

from __future__ import annotations

import ast
import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from agents.se_darwin.edits import EditSpace
from agents.se_darwin.evaluation import Evaluation
from agents.se_darwin.jail.stand_in import UNREACHABLE, UNSENDABLE
from agents.se_darwin.sandbox import Exam, ExamError, Limits, Sandbox, TestCase
from agents.se_darwin.tasks import RepairTask

MAX_TIMEOUT_SECONDS = 3600.0

_LEAST = Limits(cpu_seconds=0.05, wall_seconds=1.0)
_CPU_SHARE_IF_HUNG, _WALL_SHARE_IF_HUNG = 0.05, 0.2
_CPU_MARGIN, _WALL_MARGIN = 20, 10


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
        test_code: The same as text of a test module, in place of *tests*; see
            `agents.se_darwin.sandbox.Exam`.
        module: Name by which *test_code* imports *code*.
        path: Path by which the diff names the file of *code*.
        agent_folder: Where the agent's published world model lies that is to rank the
            candidates, and its replay buffer; None to do without.
        record: Whether the candidates run are recorded there, for the agent to learn from.
        hidden_tests: Checked at the end only, never searched on.
        max_evaluations: Most candidates to run.
        seed: The same seed, the same search.
        timeout_seconds: Most seconds that the given program may take for all its tests, and half
            of the most that a candidate may; an hour at most. None for the agent's own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    code: str
    function: str
    tests: tuple[CallCase, ...] = ()
    test_code: str = ""
    module: str = "program"
    path: str = "program.py"
    agent_folder: Path | None = None
    record: bool = True
    hidden_tests: tuple[CallCase, ...] = ()
    max_evaluations: int = Field(default=500, ge=1)
    seed: int = 0
    timeout_seconds: float | None = Field(default=None, gt=0.0, le=MAX_TIMEOUT_SECONDS)

    @field_validator("code")
    @classmethod
    def _check_code(cls, code: str) -> str:
        try:
            ast.parse(code)
        except SyntaxError as error:
            raise ValueError(f"code is not Python: {error}") from None
        return code

    @model_validator(mode="after")
    def _check_imports(self) -> EvolutionRequest:
        needed = set(_needed_imports(ast.parse(self.code), self.function))
        foreign = sorted(
            name for name in needed if name.split(".")[0] not in sys.stdlib_module_names
        )
        if foreign:
            raise ValueError(
                f"the sandbox has the standard library only, but the code imports "
                f"{', '.join(foreign)}: put the function where it does without"
            )
        return self

    @model_validator(mode="after")
    def _check_tests(self) -> EvolutionRequest:
        if bool(self.tests) == bool(self.test_code):
            raise ValueError("give either tests, a list of calls, or test_code, a test module")
        return self

    def sandbox(self) -> Sandbox:
        """A sandbox that has what the code and its tests import.

        Raises:
            ExamError: The tests cannot be run there.
            SandboxUnavailableError: This host cannot isolate candidates.
        """
        exam = self._exam()
        modules = {*_imports(self.code), *(exam.modules if exam else ())}
        return Sandbox(modules=sorted(modules), packages=_folder_of_pytest(modules))

    def task(self, sandbox: Sandbox, timeout_seconds: float) -> RepairTask:
        """The repair task.

        A candidate gets twenty times the CPU time of the given program and ten times its wall
        clock time; where that one hangs, of what the tests take without it, and no less than a
        share of *timeout_seconds*.

        Args:
            sandbox: Where the given program is timed.
            timeout_seconds: The most that the given program gets; a candidate gets twice that.

        Raises:
            ValueError: *code* does not define the function, the tests cannot be run, do not end
                or do not call it.
        """
        limits = Limits(cpu_seconds=timeout_seconds, wall_seconds=timeout_seconds)
        space = EditSpace(self.code, self.function)
        exam, tests = self._exam(), tuple(test.case() for test in self.tests)
        if exam is not None:
            checks = sandbox.collect(exam, function=self.function, limits=limits)
            exam = replace(exam, checks=checks)
            tests = exam.cases()
        task = RepairTask(
            name=f"{self.module}.{self.function}",
            function=self.function,
            module=None,
            space=space,
            tests=tests,
            hidden_tests=tuple(test.case() for test in self.hidden_tests),
            limits=limits,
            exam=exam,
        )
        task = replace(task, limits=_measured_limits(task, sandbox, limits))
        [given] = task.evaluate(sandbox, [(frozenset(), space.source)], coverage=True)
        self._check_given(given)
        return task

    def _exam(self) -> Exam | None:
        if not self.test_code:
            return None
        return Exam.prepare(
            self.test_code, program=self.code, module=self.module, function=self.function
        )

    def _check_given(self, given: Evaluation) -> None:
        """Refuse tests that say nothing of the function."""
        for output in given.execution.outputs:
            if output is not None and output.text.startswith(UNREACHABLE):
                raise ValueError(f"the tests cannot be used as they are: {output.text}")
            if output is not None and output.text.startswith(UNSENDABLE):
                raise ValueError(
                    f"a test calls {self.function}, but {output.text}; use plain values, or "
                    "objects of classes that the program's own module defines"
                )
        strange = [output for output in given.execution.outputs if output is not None]
        if strange and all(output.kind == "strange" for output in strange):
            raise ValueError(
                f"the tests cannot judge {self.function}: {strange[0].text}. Evolve a function "
                "that returns plain values, or objects of classes that the program's own module "
                "defines"
            )
        reached = any(output is None or output.lines for output in given.execution.outputs)
        if self.test_code and not reached:
            raise ValueError(f"no test calls {self.function}: there is nothing to judge it by")


def _folder_of_pytest(modules: Collection[str]) -> list[Path]:
    """Where pytest lies, if it is among *modules*."""
    if not any(name.partition(".")[0] == "pytest" for name in modules):
        return []
    spec = find_spec("pytest")
    if spec is None or spec.origin is None:
        raise ExamError(
            "the tests import pytest, which is not installed beside genesis-fp16: install it "
            "there, or use plain asserts"
        )
    return [Path(spec.origin).parents[1]]


def _measured_limits(task: RepairTask, sandbox: Sandbox, most: Limits) -> Limits:
    """Limits for candidates, by what the given program takes, or its tests where that one hangs."""
    least, source = _LEAST, task.space.source
    given, wall_seconds = _time(task, sandbox, source)
    if given.execution.end == "timeout":
        raising = f"\n\ndef {task.function}(*_, **__):\n    raise RuntimeError"
        least = Limits(
            cpu_seconds=_CPU_SHARE_IF_HUNG * most.cpu_seconds,
            wall_seconds=_WALL_SHARE_IF_HUNG * most.wall_seconds,
        )
        given, wall_seconds = _time(task, sandbox, source + raising)
        if given.execution.end == "timeout":
            raise ValueError(
                f"the tests do not end within {most.wall_seconds:g} s, not even where "
                f"{task.function} does nothing but raise: look in them for a loop without end; "
                "if they are only slow, give them more time (--timeout, timeout_seconds)"
            )
    cpu_seconds = max(least.cpu_seconds, _CPU_MARGIN * given.execution.cpu_seconds)
    wall_seconds = max(least.wall_seconds, _WALL_MARGIN * wall_seconds)
    return replace(
        most,
        cpu_seconds=min(2 * most.cpu_seconds, cpu_seconds),
        wall_seconds=min(2 * most.wall_seconds, wall_seconds),
    )


def _time(task: RepairTask, sandbox: Sandbox, source: str) -> tuple[Evaluation, float]:
    """What *source* comes to, and the seconds that passed."""
    began = time.monotonic()
    [evaluation] = task.evaluate(sandbox, [(frozenset(), source)])
    return evaluation, time.monotonic() - began


def _imports(code: str) -> set[str]:
    """All modules that *code*, which is Python, imports anywhere."""
    return {name for node in ast.walk(ast.parse(code)) for name in _imported(node)}


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return ["." * node.level + (node.module or "")]
    return []


def _needed_imports(node: ast.AST, function: str) -> Iterator[str]:
    """Modules without which *function* cannot run.

    Not those that other functions import when called, that a ``try`` does without, or that are
    for type checkers only.
    """
    yield from _imported(node)
    for child in ast.iter_child_nodes(node):
        optional = isinstance(child, ast.Try) and bool(child.handlers)
        other = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and child.name != function
        typing = isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING")
        if not (optional or other or typing):
            yield from _needed_imports(child, function)
