"""The request of a caller of `evolve_solution`, validated before anything runs."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    field_validator,
    model_validator,
)

from agents.se_darwin.edits import EditSpace
from agents.se_darwin.proposals.desk import MOST_PROPOSALS
from agents.se_darwin.sandbox import (
    Limits,
    ProgramSources,
    PytestSuite,
    PytestSuiteError,
    Sandbox,
    TestCase,
    TestSources,
)
from agents.se_darwin.sandbox.pytest_suite import HERE
from agents.se_darwin.solution.imports import (
    is_available,
    missing_modules,
    modules_to_import,
    needed_modules,
    package_folders,
)
from agents.se_darwin.solution.localization import Localization
from agents.se_darwin.solution.preparation import prepare_task
from agents.se_darwin.tasks import RepairTask
from agents.se_darwin.tasks.set_order import HASH_SEEDS

MAX_TIMEOUT_SECONDS = 3600.0

_SHARING_WORDS = (
    *("caplog", "assertLogs", "assertWarns", "recwarn", "warns(", "capsys", "redirect_stdout"),
    *("monkeypatch", "mock"),
)
_ASYNCHRONOUS = "async"  # also in asyncio: the sandbox gives the program its own event loop
_INTERRUPTING_WORDS = (  # in tests that end, or overtake, a call of an asynchronous function
    *("timeout", "wait_for", "wait(", "cancel", "shield", "move_on_after", "fail_after"),
    *("create_task", "ensure_future", "gather", "start_soon", "as_completed"),
)
_FILE_WORDS = ("tmp_path", "tempfile")  # in tests, or a program, that make files


EXAMPLE = """\
await SEDarwinAgent("qa").evolve_solution(
    "the mean of nothing must be 0",
    {
        "code": "def mean(values):\\n    return sum(values) / len(values)\\n",
        "function": "mean",
        "tests": [(([1, 3],), 2.0), (([],), 0.0)],
    },
)"""
"""A call of `evolve_solution`, for the error message of one that is wrong."""


class EvolutionRequestError(ValueError):
    """The context of `evolve_solution` is wrong; the message names all problems.

    Attributes:
        problems: What is wrong, with the name of the field where it concerns one.
    """

    def __init__(self, error: ValidationError) -> None:
        fields = ", ".join(EvolutionRequest.model_fields)
        is_misshapen = False
        self.problems: list[str] = []
        for detail in error.errors(include_url=False, include_input=False):
            field, kind = ".".join(map(str, detail["loc"])), detail["type"]
            message = detail["msg"].removeprefix("Value error, ")
            if kind == "missing":
                message = f"{field} is missing"
            elif kind == "extra_forbidden":
                message = f"{field} is not a field; fields are {fields}"
            elif kind != "value_error":
                message = f"{field or 'context'}: {message}"
            is_misshapen = is_misshapen or kind != "value_error"
            self.problems.append(message)
        message = f"evolve_solution cannot use this context: {'; '.join(self.problems)}"
        if is_misshapen:
            message += f". A call looks like this:\n{EXAMPLE}"
        super().__init__(message)


class CallCase(BaseModel):
    """One test: a call, and the value it returns or the exception it raises.

    A pair ``(args, value)`` is short for ``{"args": args, "expected": value}``.

    Attributes:
        args: Positional arguments; literals only.
        kwargs: Keyword arguments; literals only.
        expected: Expected return value. Floats are compared to 12 significant digits.
        raises: Name of the exception that is expected instead.
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
        """Return the test case for the sandbox."""
        if self.raises is None:
            case = TestCase.returning(self.args, self.expected)
        else:
            case = TestCase(arguments=self.args, kind="raise", expected=self.raises)
        return replace(case, keywords=self.kwargs)


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchProgress:
    """How far a search is.

    Attributes:
        evaluations: Candidates run so far, of at most *max_evaluations*.
        passed: Checks that the best program so far passes, of *checks*.
        seconds_left: Seconds until the search ends at the latest, as its pace so far suggests.
    """

    evaluations: int
    max_evaluations: int
    passed: int
    checks: int
    seconds_left: float


RankerName = Literal["model", "suspicion", "random"]


class EvolutionRequest(BaseModel):
    """The context of `SEDarwinAgent.evolve_solution`.

    Attributes:
        code: Source of a module that defines the function; it may contain other definitions.
        function: Name of the function to repair, at the top level of *code*, or ``Class.method``
            with *test_code*. If it is empty, the functions that failing tests of *test_code* visit
            are tried, the most suspicious first.
        tests: Calls with expected results; see `CallCase`.
        test_code: Source of a test module, instead of *tests*; see
            `agents.se_darwin.sandbox.PytestSuite`.
        conftests: Sources of the conftest files of *test_code*, the farthest first.
        test_helpers: Sources of further modules that *test_code* imports, by name.
        test_keyword: Expression that the tests to run match, as ``-k`` of pytest.
        test_path: Path of the file of *test_code*, whose parts *test_keyword* may name.
        module: Dotted name of the module of *code*.
        own_modules: Sources of modules of its own that *code* imports, by dotted name; that of a
            package as ``package.__init__``.
        test_aliases: Names by which the tests import *own_modules*, with their real names.
        path: Path of the file of *code* in the diff.
        agent_folder: Folder of the agent's replay buffer and of its published world model, which
            ranks the candidates; None to use neither.
        record: Whether to record the candidates there, for the agent to learn from.
        hidden_tests: Tests that are run at the end only; the search never sees them.
        max_evaluations: Maximum number of candidates to run.
        seed: Seed of the search.
        timeout_seconds: Maximum time in seconds of the given program for all its tests, at most an
            hour; a candidate gets at most twice this. None for the agent's default.
        max_seconds: Seconds after which the search ends; None for no such limit.
        docstring: Whether a repair must do what the examples in the function's docstring show.
        ranker: What chooses the candidates: the agent's world model (if there is none, suspicion),
            the suspiciousness of the lines they change, or chance.
        proposers: Options of the proposers, besides the edits, that write candidates, by name.
        max_proposals: Most candidates to take from each of them.
        on_progress: Called after each generation.
        stop: Called before each generation; the search ends if it returns True.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    code: str
    function: str
    tests: tuple[CallCase, ...] = ()
    test_code: str = ""
    conftests: tuple[str, ...] = ()
    test_helpers: dict[str, str] = Field(default_factory=dict)
    test_keyword: str = ""
    test_path: str = ""
    module: str = "program"
    own_modules: dict[str, str] = Field(default_factory=dict)
    test_aliases: dict[str, str] = Field(default_factory=dict)
    path: str = "program.py"
    agent_folder: Path | None = None
    record: bool = True
    hidden_tests: tuple[CallCase, ...] = ()
    max_evaluations: int = Field(default=20_000, ge=1)
    seed: int = 0
    timeout_seconds: float | None = Field(default=None, gt=0.0, le=MAX_TIMEOUT_SECONDS)
    max_seconds: float | None = Field(default=None, gt=0.0)
    docstring: bool = True
    ranker: RankerName = "model"
    proposers: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    max_proposals: int = Field(default=MOST_PROPOSALS, ge=1)
    on_progress: Callable[[SearchProgress], None] | None = None
    stop: Callable[[], bool] | None = None

    @classmethod
    def from_context(cls, context: Mapping[str, object] | None) -> EvolutionRequest:
        """The request in the *context* of a call.

        Raises:
            EvolutionRequestError: *context* is not a mapping, or a field is missing, unknown or
                invalid.
        """
        given = dict(context) if isinstance(context, Mapping) else context or {}
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise EvolutionRequestError(error) from None

    @field_validator("code")
    @classmethod
    def _check_code(cls, code: str) -> str:
        try:
            ast.parse(code)
        except SyntaxError as error:
            raise ValueError(f"code is not valid Python: {error}") from None
        return code

    @model_validator(mode="after")
    def _check_imports(self) -> EvolutionRequest:
        needed = needed_modules(self._program, self.function)
        unavailable = sorted(name for name in needed if not is_available(name))
        if unavailable:
            raise ValueError(
                f"the code imports {', '.join(unavailable)}, which is not installed in the "
                "environment of genesis-fp16: install it there, or move the function to a module "
                "without these imports"
            )
        return self

    @model_validator(mode="after")
    def _check_tests(self) -> EvolutionRequest:
        if bool(self.tests) == bool(self.test_code):
            raise ValueError("give either tests (a list of calls) or test_code (a test module)")
        if self.tests and not self.function:
            raise ValueError("function is empty: name it, or give test_code (a test module)")
        if self.tests and "." in self.function:
            raise ValueError(f"{self.function} is a method: give test_code (a test module)")
        return self

    def sandbox(self) -> Sandbox:
        """Open a sandbox with the modules that the code and its tests import.

        Raises:
            PytestSuiteError: The tests cannot be run in the sandbox.
            SandboxUnavailableError: This host cannot isolate candidates.
        """
        suite, test_sources = self._suite(), self._test_sources
        of_tests = set(suite.modules) if suite else set()
        if missing := missing_modules(of_tests, test_sources):
            names = ", ".join(missing).replace(HERE, "")
            raise PytestSuiteError(
                f"the tests import {names}: the sandbox has {self.module}, modules beside the "
                "tests, the standard library, and what is installed in the environment of "
                "genesis-fp16"
            )
        needed = needed_modules(self._program, self.function) | of_tests
        modules = modules_to_import(self._program, test_sources, needed)
        texts = (self.code, *self.own_modules.values(), *test_sources)
        if any(_ASYNCHRONOUS in text for text in texts):
            modules.add("asyncio")
        return Sandbox(
            modules=sorted(modules),
            packages=package_folders(modules | {"pydantic"}),  # others may be asked for later
            files=any(word in text for text in texts for word in _FILE_WORDS),
        )

    def task(self, sandbox: Sandbox, timeout_seconds: float) -> RepairTask:
        """Build the repair task; see `agents.se_darwin.solution.preparation.prepare_task`.

        Args:
            sandbox: Sandbox in which the given program is timed.
            timeout_seconds: Time limit of the given program; a candidate gets at most twice that.

        Raises:
            ValueError: *code* does not define the function, or the tests cannot be run, do not end,
                or do not call it.
        """
        limits = Limits(cpu_seconds=timeout_seconds, wall_seconds=timeout_seconds)
        task = RepairTask(
            name=f"{self.module}.{self.function}",
            function=self.function,
            module=None,
            space=EditSpace(self.code, self.function),
            tests=tuple(test.case() for test in self.tests),
            hidden_tests=tuple(test.case() for test in self.hidden_tests),
            limits=limits,
            hash_seeds=HASH_SEEDS,
        )
        return prepare_task(
            task, self._suite(), sandbox, most=limits, in_one_process=self._shares_process()
        )

    def localize(self, timeout_seconds: float) -> Localization:
        """Run all tests of *test_code*; see `Localization.of`."""
        suite = self._suite()
        if suite is None:
            raise ValueError("give test_code (a test module)")
        limits = Limits(cpu_seconds=timeout_seconds, wall_seconds=timeout_seconds)
        with self.sandbox() as sandbox:
            return Localization.of(suite, sandbox, limits)

    def _suite(self) -> PytestSuite | None:
        if not self.test_code:
            return None
        tests = TestSources(
            code=self.test_code,
            conftests=self.conftests,
            helpers=self.test_helpers,
            keyword=self.test_keyword,
            aliases=self.test_aliases,
            path=self.test_path,
        )
        return PytestSuite.prepare(tests, self._program, self.function)

    def _shares_process(self) -> bool:
        """Whether the tests see or change the program's process by more than calls.

        Another process answers a call at once: an event loop here cannot interrupt it.
        """
        interrupting = _INTERRUPTING_WORDS if "async def" in self.code else ()
        words = (*_SHARING_WORDS, *interrupting)
        return any(word in text for text in self._test_sources for word in words)

    @property
    def _program(self) -> ProgramSources:
        return ProgramSources(self.code, self.module, self.own_modules)

    @property
    def _test_sources(self) -> list[str]:
        return [self.test_code, *self.conftests, *self.test_helpers.values()]
