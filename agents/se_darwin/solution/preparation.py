"""Preparation of a repair task by runs of the given program: its checks, limits and processes."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from agents.se_darwin.edits import Edit
from agents.se_darwin.fork_server.given_modules import PROJECT_FOLDER, module_names
from agents.se_darwin.sandbox import Limits, Output, PytestSuite, PytestSuiteError, Sandbox
from agents.se_darwin.solution.imports import is_available, is_within
from agents.se_darwin.tasks import RepairTask
from agents.se_darwin.tasks.evaluation import Evaluation

_LEAST = Limits(cpu_seconds=0.1, wall_seconds=1.0)  # of a candidate
_CPU_SHARE_IF_HUNG, _WALL_SHARE_IF_HUNG = 0.015, 0.2  # least shares of the given program's limits
_MOST_LAZY_IMPORTS = 10  # times that the sandbox is started with modules not named in any file
_CPU_MARGIN, _WALL_MARGIN = 20, 10  # times of the given program that a candidate may take


def prepare_task(
    task: RepairTask,
    suite: PytestSuite | None,
    sandbox: Sandbox,
    *,
    most: Limits,
    in_one_process: bool,
) -> RepairTask:
    """Return *task* with its checks, limits for candidates, and one process or two for its tests.

    A candidate gets 20 times the CPU time of the given program and 10 times its wall-clock time.
    If that program hangs, the times of the tests without it count, and a candidate gets at least a
    fixed share of *most*.

    Args:
        task: Task with the given program, and with its tests if these are calls.
        suite: Test suite, unless the tests are calls.
        sandbox: Sandbox in which the given program runs.
        most: Limits of the given program; a candidate gets at most twice this time.
        in_one_process: Whether the tests can only run in the process of the program.

    Raises:
        ValueError: The tests cannot be run, do not end, or do not call the function.
    """
    program = (frozenset[Edit](), task.space.source)
    own_modules = module_names(suite.program.own_modules) if suite is not None else []
    if suite is not None:
        task = _with_checks(task, suite, sandbox, most)
    task = replace(task, limits=_measured_limits(task.within, sandbox, most))
    [given] = task.within.evaluate(sandbox, [program], coverage=True)
    for _ in range(_MOST_LAZY_IMPORTS):  # packages import some modules when they are used
        if not _import_missing(sandbox, given.execution.missing_modules, own_modules):
            break
        [given] = task.within.evaluate(sandbox, [program], coverage=True)
    if task.suite is not None:
        task, given = _without_unfit(task, task.suite, given, sandbox, most)
    _check_reached(given, task, sandbox, most)
    task = replace(task, given=given)
    within = in_one_process or not _runs_apart(task, sandbox, given)
    return task.within if within else task


def _with_checks(
    task: RepairTask, suite: PytestSuite, sandbox: Sandbox, limits: Limits
) -> RepairTask:
    """Return *task* with the checks of *suite*; see `list_checks`."""
    collected = list_checks(suite, task.function, sandbox, limits)
    return replace(task, suite=collected, tests=collected.cases())


def list_checks(suite: PytestSuite, function: str, sandbox: Sandbox, limits: Limits) -> PytestSuite:
    """Return *suite* with its checks.

    Modules that are not there yet, because a package imports them when something in it is first
    read, are imported into *sandbox*.

    Raises:
        PytestSuiteError: The suite cannot be run in the sandbox.
    """
    own_modules = module_names(suite.program.own_modules)
    for _ in range(_MOST_LAZY_IMPORTS):
        try:
            collected = sandbox.collect(suite, function=function, limits=limits)
        except PytestSuiteError as error:
            if not _import_missing(sandbox, error.missing_modules):
                raise
        else:
            if not _import_missing(sandbox, collected.missing_modules, own_modules):
                return collected
    return sandbox.collect(suite, function=function, limits=limits)


def _import_missing(
    sandbox: Sandbox, names: Collection[str], own_modules: Collection[str] = ()
) -> bool:
    """Import those of the modules *names* that are installed; return whether there are any.

    Modules in packages of *own_modules* are not imported: the program has done without them,
    and those of an installed copy may replace the function under repair.
    """
    installed = [name for name in names if is_available(name) and not is_within(name, own_modules)]
    return sandbox.import_modules(installed)


def _without_unfit(
    task: RepairTask, suite: PytestSuite, given: Evaluation, sandbox: Sandbox, most: Limits
) -> tuple[RepairTask, Evaluation]:
    """Leave out the tests that no program can pass; return the task, and *given* without them.

    The sandbox refuses what they need, or they end the process or their run themselves. If they, or
    the program, handle the error with which something is refused, they are left out only if another
    test fails, since the function may be why they fail. A file that is refused counts only if it
    exists: without it, the program would handle an error here, too.

    Raises:
        PytestSuiteError: No test is left.
    """
    unfit, handled = dict(given.execution.refused), dict[str, str]()
    if not given.fixed and not given.execution.hung:
        limits = task.limits or most
        watched = sandbox.watch(task.space.source, suite, function=task.function, limits=limits)
        for kind, test, why, file in watched:
            if kind == "ends":
                unfit.setdefault(test, why)
            elif kind == "handled" and (
                not file or _exists(Path(file.removeprefix(PROJECT_FOLDER)))
            ):
                handled[test] = why
    if handled:
        try:
            fewer, evaluation = _without(handled | unfit, task, suite, sandbox, most)
        except PytestSuiteError:
            pass
        else:
            if not evaluation.fixed:
                return fewer, evaluation
    return _without(unfit, task, suite, sandbox, most) if unfit else (task, given)


def _without(
    reasons: Mapping[str, str],
    task: RepairTask,
    suite: PytestSuite,
    sandbox: Sandbox,
    most: Limits,
) -> tuple[RepairTask, Evaluation]:
    """Return *task* without the tests that *reasons* name, and its program run with the others."""
    task = _with_checks(task, suite.without(reasons, task.function), sandbox, most)
    program = (frozenset[Edit](), task.space.source)
    [given] = task.within.evaluate(sandbox, [program], coverage=True)
    return task, given


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # in a folder that this user may not read: the program cannot read it either
        return False


def _runs_apart(task: RepairTask, sandbox: Sandbox, given: Evaluation) -> bool:
    """Whether the tests give the same results as in the program's process, *given*, in their own.

    They do not if they give the function, or get from it, what cannot be sent to another process.
    A check that gets or raises something else there has another result, although both fail.
    Checks that did not run in a process of their own, because an earlier one hangs, tell nothing.
    """
    if task.suite is None:
        return True
    [apart] = task.evaluate(sandbox, [(given.edits, given.source)], coverage=True)
    outputs = zip(apart.execution.outputs, given.execution.outputs, strict=True)
    return all(
        ours is None or (ours.kind != "strange" and theirs is not None and _same(ours, theirs))
        for ours, theirs in outputs
    )


def _same(one: Output, other: Output) -> bool:
    return (one.kind, one.text) == (other.kind, other.text)


def _check_reached(given: Evaluation, task: RepairTask, sandbox: Sandbox, most: Limits) -> None:
    """Refuse a suite whose results do not depend on the function.

    Raises:
        ValueError: No test calls the function.
    """
    outputs = given.execution.outputs
    lines = task.space.lines
    reached = any(output is None or output.lines.intersection(lines) for output in outputs)
    if reached or task.suite is None:
        return
    for test, output in zip(task.tests, outputs, strict=True):
        if output is not None and output.kind == "raise":
            check = str(test.arguments[0])
            place = _failure_place(check, task, task.suite, sandbox, most)
            raise ValueError(
                f"no test calls {task.function}: {check} raises {output.text} before it does{place}"
            )
    left_out = "; ".join(task.suite.left_out)
    raise ValueError(
        f"no test that can be run calls {task.function}: {left_out}"
        if left_out
        else f"no test calls {task.function}; add a test that does"
    )


def _failure_place(
    check: str, task: RepairTask, suite: PytestSuite, sandbox: Sandbox, most: Limits
) -> str:
    """Where in the tests *check* fails, in words; empty if it fails in its own assert."""
    test = check.partition(",")[0].partition("[")[0]
    limits = task.limits or most
    watched = sandbox.watch(task.space.source, suite, function=task.function, limits=limits)
    places = [where for kind, name, where, _ in watched if (kind, name) == ("raises", test)]
    return next((f", in {where}" for where in places if where), "")


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
