"""The child process in which an agent evolves a program: the command line never imports agents.

A request comes on stdin, the answer goes to a descriptor of its own: a plugin may print.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Protocol, cast

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from genesis_fp16.plugins.loading import PluginRefusedError, load_agent, one_line
from genesis_fp16.system.processes import die_with_parent


class Evolver(Protocol):
    """An agent that evolves programs, beside what every agent does."""

    async def evolve_solution(
        self, problem_description: str, context: dict[str, JsonValue]
    ) -> object:
        """Evolve the program in *context*; see `Evolved` for what is returned."""


class EvolveRequest(BaseModel):
    """What the parent asks.

    Attributes:
        agent: Name of the entry point.
        entry_point: ``module:attribute``.
        folder: For temporary files; the parent removes it.
        problem: In words.
        context: The agent's own; see its `evolve_solution`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    agent: str
    entry_point: str
    folder: Path
    problem: str
    context: dict[str, JsonValue]


class BestProgram(BaseModel):
    """The part of ``best_trajectory`` that is shown."""

    model_config = ConfigDict(frozen=True, extra="allow")
    diff: str
    edits: list[str]
    lineage: list[str]
    test_results: list[bool]


class Evolved(BaseModel):
    """What an agent's ``evolve_solution`` returns, as far as it is shown; the rest is kept.

    Attributes:
        recorded: What the agent has kept to learn from, or why nothing, in one line.
    """

    model_config = ConfigDict(frozen=True, extra="allow")
    success: bool
    best_trajectory: BestProgram
    pool_statistics: dict[str, float]
    total_time: float
    ranked_by: str
    recorded: str = ""


class EvolveAnswer(BaseModel):
    """What came of it: a result, or why there is none.

    Attributes:
        result: What the agent returned.
        refused: What is wrong with the request, the agent or the host; with the remedy.
        exit_code: For the process that asked.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    result: Evolved | None = None
    refused: str = ""
    exit_code: int = 0


def answer(request: EvolveRequest) -> EvolveAnswer:
    """Load the agent and let it evolve; a refusal of its own is an answer too.

    Whatever else it raises comes through.
    """
    try:
        agent = load_agent(request.entry_point, request.agent)
        if not hasattr(agent, "evolve_solution"):
            raise PluginRefusedError(f"{request.agent} does not evolve programs")
        evolver = cast("Evolver", agent)
        result = asyncio.run(evolver.evolve_solution(request.problem, request.context))
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, each['loc']))}: {each['msg']}".rpartition(": Value error, ")[2]
            for each in error.errors()
        ]
        return EvolveAnswer(refused="; ".join(problems), exit_code=os.EX_DATAERR)
    except PluginRefusedError as error:
        return EvolveAnswer(refused=one_line(str(error)), exit_code=error.exit_code)
    except ValueError as error:
        return EvolveAnswer(refused=str(error), exit_code=os.EX_DATAERR)
    except RuntimeError as error:  # such as a host that cannot isolate what it would run
        return EvolveAnswer(refused=str(error), exit_code=os.EX_UNAVAILABLE)
    return EvolveAnswer(result=Evolved.model_validate(result))


def main() -> None:
    """Answer the request on stdin through a descriptor; both it and the parent are arguments."""
    die_with_parent(int(sys.argv[2]))
    request = EvolveRequest.model_validate_json(sys.stdin.read())
    tempfile.tempdir = str(request.folder)
    with os.fdopen(int(sys.argv[1]), "w", closefd=False) as channel:
        channel.write(answer(request).model_dump_json())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # without waiting for threads that a plugin started


if __name__ == "__main__":
    main()
