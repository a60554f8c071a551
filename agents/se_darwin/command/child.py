"""The child process in which the agent evolves a program: only here torch is imported.

The request comes on stdin; the answer goes to its own file descriptor, because an agent may print.
"""

from __future__ import annotations

import asyncio
import gc
import os
import pkgutil
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, JsonValue

if TYPE_CHECKING:
    from agents.se_darwin.solution.request import SearchProgress

EvolveSolution = Callable[[str, dict[str, object]], Awaitable[object]]
_REDRAW_SECONDS = 0.2
_NEW_OBJECTS = 100_000  # before Python searches them for garbage
_TOO_DEEP = (
    "the program or a value of its tests is nested too deeply to be repaired: split the longest "
    "expression of the file, such as a sum of hundreds of terms"
)


class ChildRequest(BaseModel):
    """Request of the parent.

    Attributes:
        agent: Name of the agent's entry point.
        entry_point: ``module:attribute`` of its factory.
        folder: Folder for temporary files; the parent removes it.
        problem: Description of the problem in words.
        context: Context of the agent's `evolve_solution`.
        shows_progress: Whether to write the progress to stderr, a terminal.
        shows_prompts: Whether only to return what the proposers would send.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    agent: str
    entry_point: str
    folder: Path
    problem: str
    context: dict[str, JsonValue]
    shows_progress: bool = False
    shows_prompts: bool = False


class ProposerReport(BaseModel):
    """Part of an element of ``proposers`` that is shown."""

    model_config = ConfigDict(frozen=True, extra="allow")
    name: str
    proposed: int
    run: int
    descendants: int
    repairs: int
    dropped: dict[str, int]
    share: float
    problem: str
    summary: str


class BestProgram(BaseModel):
    """Part of ``best_trajectory`` that is shown."""

    model_config = ConfigDict(frozen=True, extra="allow")
    diff: str
    edits: list[str]
    lineage: list[str]
    test_results: list[bool]


class Certainty(BaseModel):
    """Part of ``certainty`` that is shown."""

    model_config = ConfigDict(frozen=True, extra="allow")
    level: str
    summary: str
    question: str
    note: str
    seconds: float


class RepairResult(BaseModel):
    """Part of what ``evolve_solution`` returns that is shown; the other keys are kept.

    Attributes:
        recorded: What the agent recorded to learn from, or why nothing, in one line.
        ended: Why the search ended; see `agents.se_darwin_agent.Ended`.
        ended_process: Check in which the given program's process ended, if in any.
        left_out: Why a test of the function was not run, for each such test.
        failing: Names of the checks that the best program fails.
        certainty: How sure the repair is.
        proposers: What became of the candidates of each proposer.
        functions: What was tried, and why, if the user named no function.
    """

    model_config = ConfigDict(frozen=True, extra="allow")
    success: bool
    best_trajectory: BestProgram
    pool_statistics: dict[str, float]
    total_time: float
    ranked_by: str
    recorded: str = ""
    ended: str = ""
    ended_process: str = ""
    left_out: list[str] = []
    failing: list[str] = []
    certainty: Certainty | None = None
    proposers: list[ProposerReport] = []
    functions: list[str] = []


class ChildAnswer(BaseModel):
    """A result, or why there is none.

    Attributes:
        result: What the agent returned.
        prompts: What the proposers would send, by name, if only this was asked.
        refused: What is wrong with the request, the agent or the host; with the remedy.
        exit_code: Exit code for the command.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    result: RepairResult | None = None
    prompts: dict[str, str] | None = None
    refused: str = ""
    exit_code: int = 0


def answer(request: ChildRequest) -> ChildAnswer:
    """Load the agent and let it evolve; a refusal of the agent is an answer too."""
    try:
        evolve_solution = _load(request)
    except (Exception, SystemExit) as error:  # plugin code may raise anything
        refused = f"agent {request.agent} cannot be used: {type(error).__name__}: {error}; "
        return ChildAnswer(
            refused=f"{' '.join(refused.split())} see genesis-fp16 agents", exit_code=os.EX_CONFIG
        )
    if evolve_solution is None:
        refused = f"agent {request.agent} does not evolve programs: it has no evolve_solution"
        return ChildAnswer(refused=refused, exit_code=os.EX_CONFIG)
    from agents.se_darwin.solution.request import EvolutionRequestError

    try:
        result = asyncio.run(_evolve(evolve_solution, request))
    except EvolutionRequestError as error:
        return ChildAnswer(refused="; ".join(error.problems), exit_code=os.EX_DATAERR)
    except (ValueError, RecursionError) as error:
        refused = _TOO_DEEP if isinstance(error, RecursionError) else str(error)
        return ChildAnswer(refused=refused, exit_code=os.EX_DATAERR)
    except RuntimeError as error:  # the host cannot isolate candidates, for example
        return ChildAnswer(refused=str(error), exit_code=os.EX_UNAVAILABLE)
    return ChildAnswer.model_validate({"prompts" if request.shows_prompts else "result": result})


def _load(request: ChildRequest) -> EvolveSolution | None:
    """The method of a new agent; None if the agent has none."""
    agent = pkgutil.resolve_name(request.entry_point)()
    name = "preview_proposals" if request.shows_prompts else "evolve_solution"
    method: EvolveSolution | None = getattr(agent, name, None)
    return method


async def _evolve(evolve_solution: EvolveSolution, request: ChildRequest) -> object:
    search = _Search(shows_progress=request.shows_progress)
    before = signal.signal(signal.SIGTERM, search.on_signal)
    context: dict[str, object] = {"on_progress": search.on_progress, "stop": search.stop}
    context |= request.context
    try:
        return await evolve_solution(request.problem, context)
    finally:
        search.clear()
        signal.signal(signal.SIGTERM, before)


class _Search:
    """The search under way: SIGTERM stops it and keeps what it found; a line shows its progress."""

    def __init__(self, *, shows_progress: bool) -> None:
        self._shows_progress, self._due = shows_progress, 0.0
        self._begun = self._stopped = self._drawn = False

    def on_signal(self, *_: object) -> None:
        """Stop the search; before it has begun there is nothing to keep, and the process ends."""
        if not self._begun:
            os._exit(os.EX_TEMPFAIL)
        self._stopped = True

    def stop(self) -> bool:
        """Whether the search is to end; called before each generation."""
        self._begun = True
        return self._stopped

    def on_progress(self, progress: SearchProgress) -> None:
        """Draw the line again, if it is due."""
        now = time.monotonic()
        if not self._shows_progress or now < self._due:
            return
        self._due, self._drawn = now + _REDRAW_SECONDS, True
        done = f"{progress.evaluations} of {progress.max_evaluations} candidates, best "
        done += f"{progress.passed} of {progress.checks} checks"
        if progress.passed == progress.checks:
            done = f"repaired; looking for other repairs: {progress.evaluations} candidates"
        self._draw(f"{done}, at most {progress.seconds_left:.0f} s left")

    def clear(self) -> None:
        """Remove the line."""
        if self._drawn:
            self._draw("")

    def _draw(self, line: str) -> None:
        with suppress(OSError):  # the terminal is gone
            sys.stderr.write(f"\r{line}\x1b[K")
            sys.stderr.flush()


def main() -> None:
    """Answer the request on stdin; arguments are the answer's descriptor and the parent's id."""
    if sys.platform == "linux":
        from agents.se_darwin.fork_server.confinement import die_with_parent

        die_with_parent()
    if os.getppid() != int(sys.argv[2]):  # the parent ended before
        os.kill(os.getpid(), signal.SIGKILL)
    gc.set_threshold(_NEW_OBJECTS)  # else a sixth of torch's import is a search of what it makes
    request = ChildRequest.model_validate_json(sys.stdin.read())
    tempfile.tempdir = str(request.folder)
    with os.fdopen(int(sys.argv[1]), "w", closefd=False) as channel:
        channel.write(answer(request).model_dump_json())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # without waiting for threads that the agent started


if __name__ == "__main__":
    main()
