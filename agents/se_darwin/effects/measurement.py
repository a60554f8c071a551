"""Measure the effects of a program's edits in the sandbox."""

from __future__ import annotations

import time
from collections.abc import Sequence

from agents.se_darwin.edits import Edit
from agents.se_darwin.effects.effect import Effect
from agents.se_darwin.effects.places import Places
from agents.se_darwin.fork_server.tracing import Trace
from agents.se_darwin.sandbox import Sandbox
from agents.se_darwin.tasks import RepairTask
from agents.se_darwin.tasks.evaluation import Evaluation

MAX_SECONDS = 6.0  # of one measurement, without the run of the tests
MAX_TRACES = 8000  # of one measurement: an edit each
_MOST_LOST = 8  # traces that may end their process


def measure_effects(
    task: RepairTask,
    sandbox: Sandbox,
    given: Evaluation,
    edits: Sequence[Edit],
    *,
    seconds: float = MAX_SECONDS,
) -> dict[Edit, Effect]:
    """Return the effects of further *edits* of a program, as far as they can be known.

    The program runs its tests once, instrumented; then the old and the new version of each edit's
    statement run on copies of the variables, in the same process of the sandbox.

    Args:
        task: The task.
        sandbox: Sandbox in which it runs.
        given: Evaluation of the program; it may have edits already.
        edits: Edits that go with those of *given*, each to be added alone; those that matter most
            first, because the time may end.
        seconds: Time for all of it, apart from the run of the tests.

    Returns:
        An effect for each edit that was evaluated.
    """
    if given.fixed:
        return {}
    ends = time.monotonic() + seconds
    places = Places(given.source, task.function)
    waiting: list[tuple[Edit, Trace]] = []
    for edit in edits[:MAX_TRACES]:
        trace = places.trace(task.space.program(given.edits | {edit}))
        if trace is not None:
            waiting.append((edit, trace))
        if time.monotonic() > ends - seconds / 2:
            break
    effects: dict[Edit, Effect] = {}
    source, owner = places.instrumented(), task.function.rpartition(".")[0].rpartition(".")[2]
    for _ in range(_MOST_LOST):
        left = ends - time.monotonic()
        if not waiting or left <= 0:
            break
        lines = sandbox.trace(
            source,
            task.within.suite or task.tests,
            {
                "traces": [trace for _, trace in waiting],
                "passed": list(given.passed),
                "owner": owner,
                "seconds": left,
            },
            function=task.function,
            module=task.module,
            limits=task.limits or sandbox.limits,
        )
        if not lines or lines[0][0] != "checks":
            break
        for (edit, trace), line in zip(waiting, lines[1:], strict=False):
            if line[0] == "effect":
                effects[edit] = _effect(lines[0][1:], line[1:], trace)
        waiting = waiting[len(lines) :]  # without the one that ended the process
    return effects


def _effect(checks: Sequence[object], fields: Sequence[object], trace: Trace) -> Effect:
    """Return what the sandbox reports of *trace*.

    Args:
        checks: Numbers of failing and of passing checks.
        fields: Numbers of checks that it reaches, changes and raises in, and a digest of what it
            does, empty if that is not known.
        trace: The trace.
    """
    failing, passing = (max(1, int(str(check))) for check in checks)
    *counts, digest = fields
    reached, changed_failing, changed_passing, raised_failing, raised_passing = (
        int(str(count)) for count in counts
    )
    same_as = (trace["place"], trace["old"]["text"], digest) if digest else None
    return Effect(
        failing=min(1.0, changed_failing / failing),
        passing=min(1.0, changed_passing / passing),
        raising_failing=min(1.0, raised_failing / failing),
        raising_passing=min(1.0, raised_passing / passing),
        is_reached=reached > 0,
        same_as=same_as,
    )
