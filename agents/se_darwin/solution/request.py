"""The request of a caller of `evolve_solution`, validated before anything runs."""

from __future__ import annotations

import ast
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from agents.se_darwin.edits import Edit, EditSpace
from agents.se_darwin.fork_server.given_modules import module_names
from agents.se_darwin.sandbox import (
    Limits,
    ProgramSources,
    PytestSuite,
    Sandbox,
    TestCase,
    TestSources,
)
from agents.se_darwin.sandbox.pytest_suite import HERE, PytestSuiteError
from agents.se_darwin.tasks import RepairTask
from agents.se_darwin.tasks.evaluation import Evaluation

MAX_TIMEOUT_SECONDS = 3600.0

_LEAST = Limits(cpu_seconds=0.1, wall_seconds=1.0)
_CPU_SHARE_IF_HUNG, _WALL_SHARE_IF_HUNG = 0.015, 0.2
_MOST_LAZY_IMPORTS = 10  # times that the sandbox is started with modules not named in any file
_CPU_MARGIN, _WALL_MARGIN = 20, 10
_SHARING_WORDS = (
    *("caplog", "assertLogs", "assertWarns", "recwarn", "warns(", "capsys", "redirect_stdout"),
    *("monkeypatch", "mock"),
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
        for each in error.errors(include_url=False, include_input=False):
            field, kind = ".".join(map(str, each["loc"])), each["type"]
            message = each["msg"].removeprefix("Value error, ")
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
            with *test_code*.
        tests: Calls with expected results; see `CallCase`.
        test_code: Source of a test module, instead of *tests*; see
            `agents.se_darwin.sandbox.PytestSuite`.
        conftests: Sources of the conftest files of *test_code*, the farthest first.
        test_helpers: Sources of further modules that *test_code* imports, by name.
        test_keyword: Expression that the names of the tests to run match, as ``-k`` of pytest.
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
        needed = self._needed_modules()
        unavailable = sorted(name for name in needed if not _is_available(name))
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
        if self.tests and "." in self.function:
            raise ValueError(f"{self.function} is a method: give test_code (a test module)")
        return self

    def sandbox(self) -> Sandbox:
        """Open a sandbox with the modules that the code and its tests import.

        Raises:
            PytestSuiteError: The tests cannot be run in the sandbox.
            SandboxUnavailableError: This host cannot isolate candidates.
        """
        suite = self._suite()
        of_tests = set(suite.modules) if suite else set()
        texts = self.test_code, *self.conftests, *self.test_helpers.values()
        test_trees = [ast.parse(text) for text in texts]
        needed = {name.lstrip(".") for tree in test_trees for name in _needed_imports(tree, "")}
        unavailable = sorted(
            name
            for name in of_tests
            if not _is_available(name)
            if name.startswith(HERE) or {name, name.rpartition(".")[0]} & needed
        )
        if unavailable:
            names = ", ".join(unavailable).replace(HERE, "")
            raise PytestSuiteError(
                f"the tests import {names}: the sandbox has {self.module}, modules beside the "
                "tests, the standard library, and what is installed in the environment of "
                "genesis-fp16"
            )
        trees = [ast.parse(self.code), *map(ast.parse, self.own_modules.values())]
        standard = {name for tree in trees for name in _all_imports(tree) if _is_standard(name)}
        installed = {
            name
            for tree in trees[1:]
            for name in _all_imports(tree)
            if name not in module_names(self.own_modules) and _is_available(name)
        }
        modules = {*standard, *installed, *self._needed_modules(), *of_tests}
        parts = {
            part
            for tree in [*trees, *test_trees]
            for node in ast.walk(tree)
            for part in _imported_parts(node)
            if part.rpartition(".")[0] in modules
        }
        return Sandbox(
            modules=sorted(modules | parts),
            packages=_folders_of(modules | {"pydantic"}),  # others may be asked for later
            files=any(
                word in text
                for text in (self.code, *self.own_modules.values(), *texts)
                for word in _FILE_WORDS
            ),
        )

    def task(self, sandbox: Sandbox, timeout_seconds: float) -> RepairTask:
        """Build the repair task.

        A candidate gets 20 times the CPU time of the given program and 10 times its wall-clock
        time. If that program hangs, the times of the tests without it count, and a candidate gets
        at least a fixed share of *timeout_seconds*.

        Args:
            sandbox: Sandbox in which the given program is timed.
            timeout_seconds: Time limit of the given program; a candidate gets at most twice that.

        Raises:
            ValueError: *code* does not define the function, or the tests cannot be run, do not end,
                or do not call it.
        """
        limits = Limits(cpu_seconds=timeout_seconds, wall_seconds=timeout_seconds)
        space = EditSpace(self.code, self.function)
        suite, tests = self._suite(), tuple(test.case() for test in self.tests)
        task = RepairTask(
            name=f"{self.module}.{self.function}",
            function=self.function,
            module=None,
            space=space,
            tests=tests,
            hidden_tests=tuple(test.case() for test in self.hidden_tests),
            limits=limits,
        )
        program = (frozenset[Edit](), space.source)
        if suite is not None:
            task = _with_checks(task, suite, sandbox, limits)
        task = replace(task, limits=_measured_limits(task.within, sandbox, limits))
        [given] = task.within.evaluate(sandbox, [program], coverage=True)
        for _ in range(_MOST_LAZY_IMPORTS):  # packages import some modules when they are used
            if not _import_lacking(sandbox, given.execution.lacks):
                break
            [given] = task.within.evaluate(sandbox, [program], coverage=True)
        if task.suite is not None and given.execution.refused:  # no program can pass these tests
            suite = task.suite.without(given.execution.refused, self.function)
            task = _with_checks(task, suite, sandbox, limits)
            [given] = task.within.evaluate(sandbox, [program], coverage=True)
        self._check_given(given, task)
        within = self._shares_process() or not _runs_apart(task, sandbox, given)
        return task.within if within else task

    def _suite(self) -> PytestSuite | None:
        if not self.test_code:
            return None
        tests = TestSources(
            self.test_code, self.conftests, self.test_helpers, self.test_keyword, self.test_aliases
        )
        program = ProgramSources(self.code, self.module, self.own_modules)
        return PytestSuite.prepare(tests, program, self.function)

    def _shares_process(self) -> bool:
        """Whether the tests see or change the program's process by more than calls."""
        texts = self.test_code, *self.conftests, *self.test_helpers.values()
        return any(word in text for text in texts for word in _SHARING_WORDS)

    def _needed_modules(self) -> set[str]:
        """Modules that the function needs and that are not the program's own."""
        found = set()
        own = {*module_names(self.own_modules), self.module}
        own |= {name.rpartition(".")[0] for name in own}
        for name in _needed_imports(ast.parse(self.code), self.function):
            package = self.module.rpartition(".")[0]
            if name.startswith(".") and package:
                with suppress(ImportError):  # beyond the top package
                    name = resolve_name(name, package)  # noqa: PLW2901 - the same module
            if name not in own:
                found.add(name)
        return found

    def _check_given(self, given: Evaluation, task: RepairTask) -> None:
        """Refuse tests whose results do not depend on the function."""
        outputs = given.execution.outputs
        lines = task.space.lines
        reached = any(each is None or each.lines.intersection(lines) for each in outputs)
        if reached or not self.test_code:
            return
        for test, output in zip(task.tests, outputs, strict=True):
            if output is not None and output.kind == "raise":
                raise ValueError(
                    f"no test calls {self.function}: {test.arguments[0]} raises {output.text} "
                    "before it does"
                )
        raise ValueError(f"no test calls {self.function}; add a test that does")


def _with_checks(
    task: RepairTask, suite: PytestSuite, sandbox: Sandbox, limits: Limits
) -> RepairTask:
    """Return *task* with the checks of *suite*.

    Modules that are not there yet, because a package imports them when something in it is first
    read, are imported into *sandbox*.

    Raises:
        PytestSuiteError: The suite cannot be run in the sandbox.
    """
    for _ in range(_MOST_LAZY_IMPORTS):
        try:
            found = sandbox.collect(suite, function=task.function, limits=limits)
        except PytestSuiteError as error:
            if not _import_lacking(sandbox, error.lacks):
                raise
        else:
            if not _import_lacking(sandbox, found.lacks):
                return replace(task, suite=found, tests=found.cases())
    found = sandbox.collect(suite, function=task.function, limits=limits)
    return replace(task, suite=found, tests=found.cases())


def _import_lacking(sandbox: Sandbox, names: Collection[str]) -> bool:
    """Import into *sandbox* those of the modules *names* that are installed; return whether any."""
    return sandbox.import_modules([name for name in names if _is_available(name)])


def _runs_apart(task: RepairTask, sandbox: Sandbox, given: Evaluation) -> bool:
    """Whether the tests give the same results as in the program's process, *given*, in their own.

    They do not if they give the function, or get from it, what cannot be sent to another process.
    Checks that did not run in a process of their own, because an earlier one hangs, tell nothing.
    """
    if task.suite is None:
        return True
    [apart] = task.evaluate(sandbox, [(given.edits, given.source)], coverage=True)
    pairs = zip(apart.execution.outputs, apart.passed, given.passed, strict=True)
    return all(each is None or (each.kind != "strange" and a == b) for each, a, b in pairs)


def _is_available(name: str) -> bool:
    """Whether the sandbox can import the module *name*: it is a standard or an installed one."""
    top = name.partition(".")[0]
    return _is_standard(name) or (bool(top) and _folder_of(top) is not None)


def _is_standard(name: str) -> bool:
    return name.partition(".")[0] in sys.stdlib_module_names


def _folder_of(package: str) -> Path | None:
    """Folder of installed packages that contains *package*; None if it is not installed."""
    spec = find_spec(package)
    origin = None if spec is None else spec.origin
    if spec is None or origin is None:
        return None
    folder = Path(origin).parents[1 if spec.submodule_search_locations is not None else 0]
    return folder if folder.name in ("site-packages", "dist-packages") else None


def _folders_of(modules: Collection[str]) -> list[Path]:
    """Folders that contain those of *modules* that are installed packages."""
    packages = {name.partition(".")[0] for name in modules if not _is_standard(name)}
    return sorted({folder for each in packages if (folder := _folder_of(each)) is not None})


def _measured_limits(task: RepairTask, sandbox: Sandbox, most: Limits) -> Limits:
    """Measure limits of candidates: on the given program, or on the tests alone if it hangs."""
    least, source = _LEAST, task.space.source
    given, wall_seconds = _time(task, sandbox, source)
    if given.execution.hung:
        raising = "\n\ndef __raising__(*_, **__):\n    raise RuntimeError"
        raising += f"\n{task.function} = __raising__"
        least = Limits(
            cpu_seconds=_CPU_SHARE_IF_HUNG * most.cpu_seconds,
            wall_seconds=_WALL_SHARE_IF_HUNG * most.wall_seconds,
        )
        given, wall_seconds = _time(task, sandbox, source + raising)
        if given.execution.hung:
            raise ValueError(
                f"the tests do not end within {most.wall_seconds:g} s, even if {task.function} "
                "only raises. Look for an endless loop in the tests; if they are only slow, give "
                "them more time (--timeout, timeout_seconds)"
            )
    cpu_seconds = max(least.cpu_seconds, _CPU_MARGIN * given.execution.cpu_seconds)
    wall_seconds = max(least.wall_seconds, _WALL_MARGIN * wall_seconds)
    return replace(
        most,
        cpu_seconds=min(2 * most.cpu_seconds, cpu_seconds),
        wall_seconds=min(2 * most.wall_seconds, wall_seconds),
    )


def _time(task: RepairTask, sandbox: Sandbox, source: str) -> tuple[Evaluation, float]:
    """Run *source*; return its evaluation and the wall-clock seconds it took."""
    began = time.monotonic()
    [evaluation] = task.evaluate(sandbox, [(frozenset(), source)])
    return evaluation, time.monotonic() - began


def _all_imports(tree: ast.Module) -> set[str]:
    return {name for node in ast.walk(tree) for name in _imported(node)}


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return ["." * node.level + (node.module or "")]
    return []


def _imported_parts(node: ast.AST) -> list[str]:
    """Dotted names that ``from package import name`` imports: modules, or what they contain."""
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def _needed_imports(node: ast.AST, function: str) -> Iterator[str]:
    """Yield the modules that *function* needs to run.

    Imports inside other functions, in a ``try`` with handlers, and for type checkers are skipped.
    """
    yield from _imported(node)
    for child in ast.iter_child_nodes(node):
        optional = isinstance(child, ast.Try) and bool(child.handlers)
        name = function.rpartition(".")[2]
        other = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and child.name != name
        typing = isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING")
        if not (optional or other or typing):
            yield from _needed_imports(child, function)
