"""One repair by the real `SEDarwinAgent.evolve_solution`, in a process of its own.

``python -m benchmarks.se_darwin.foreign.attempt`` reads an `AttemptRequest` from stdin and writes
an `AttemptRecord` to stdout.
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, JsonValue

from agents.se_darwin_agent import SEDarwinAgent
from benchmarks.se_darwin.foreign.answering import answer
from benchmarks.se_darwin.foreign.bug import MODULE, ForeignBug
from benchmarks.se_darwin.foreign.scripted import (
    ProposerName,
    ScriptedProposer,
    draw_samples,
    executions_in_order,
)
from benchmarks.se_darwin.foreign.trial import passed_checks
from infrastructure.agent_contract.proposer import Proposer
from infrastructure.world_model import WorldModel

RankerName = Literal["model", "suspicion", "random"]


class Conditions(BaseModel):
    """What attempts have in common; only attempts under the same conditions are compared.

    Attributes:
        ranker: What chooses the candidates.
        model: Folder ``published`` of an agent; None for the model that ships with the package.
        max_seconds: Seconds after which the search ends.
        max_evaluations: Candidates that the search may run.
        seed: Seed of the search.
        answers: Most questions about the repair that the right program answers: each answer becomes
            a visible test, and another search begins.
        proposer: What writes candidates besides the edits; empty for nothing.
        proposer_options: Options of the proposer ``llm``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    ranker: RankerName
    model: Path | None = None
    max_seconds: float = 60.0
    max_evaluations: int = 1000
    seed: int = 0
    answers: int = 0
    proposer: ProposerName = ""
    proposer_options: dict[str, JsonValue] = {}


class AttemptRequest(BaseModel):
    """Attributes:
    bug: Fields of the `ForeignBug`.
    conditions: Conditions of the attempt.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    bug: dict[str, str]
    conditions: Conditions


class AttemptRecord(BaseModel):
    """Result of one attempt.

    Attributes:
        source: Source of the bug.
        name: Name of the bug in it.
        digest: SHA-256 of the bug.
        conditions: Conditions of the attempt.
        executions: Candidates run until the first repair, or until the search ended.
        seconds: Duration, start of the sandbox included.
        repaired: Whether a changed program passes all visible tests.
        right: Whether it passes all hidden tests too.
        hidden_passed: Share of the hidden checks that it passes.
        edits: Descriptions of the edits of the program.
        diff: Change of the program.
        ended: Why the search ended.
        ranked_by: What chose, as the agent says it.
        candidate_edits: Number of single edits of the given program.
        checks: Number of visible checks.
        left_out: Why a test was not run, for each such test.
        certainty: What the agent says about how sure the repair is; None if it says nothing.
        proposers: What the agent says about the candidates of each proposer.
        in_order: Executions of the scripted samples in order until one passes; 0 without any.
        in_order_right: Whether that sample is right.
        error: Why nothing was tried; empty if the search ran.
        answered: The attempt with an answer to the question of this one; None without.
    """

    model_config = ConfigDict(extra="forbid")
    source: str
    name: str
    digest: str
    conditions: Conditions
    executions: int = 0
    seconds: float = 0.0
    repaired: bool = False
    right: bool = False
    hidden_passed: float = 0.0
    edits: list[str] = []
    diff: str = ""
    ended: str = ""
    ranked_by: str = ""
    candidate_edits: int = 0
    checks: int = 0
    left_out: list[str] = []
    certainty: JsonValue = None
    proposers: JsonValue = None
    in_order: int = 0
    in_order_right: bool = False
    error: str = ""
    answered: AttemptRecord | None = None

    @classmethod
    def failed(cls, request: AttemptRequest, error: str) -> AttemptRecord:
        """The record of an attempt that could not be made."""
        bug = ForeignBug(**request.bug)
        return cls(
            source=bug.source,
            name=bug.name,
            digest=bug.digest,
            conditions=request.conditions,
            error=error,
        )


def request_attempt(bug: ForeignBug, conditions: Conditions) -> AttemptRequest:
    """Return the request of an attempt at *bug*."""
    return AttemptRequest(bug=asdict(bug), conditions=conditions)


def attempt(request: AttemptRequest) -> AttemptRecord:
    """Let the agent repair the bug; then run the hidden tests on its program.

    The agent records nothing: an attempt must not teach the next one. Requests that the agent
    refuses give a record with an ``error``.
    """
    bug, conditions = ForeignBug(**request.bug), request.conditions
    first = record = _repair(request, bug)
    for number in range(1, conditions.answers + 1):
        call = record.certainty.get("call") if isinstance(record.certainty, dict) else None
        test = answer(bug, str(call), number) if record.repaired and call else ""
        if not test:
            break
        bug = replace(bug, test_code=f"{bug.test_code}\n\n{test}")
        record.answered = _repair(request, bug)
        record = record.answered
    return first


def _repair(request: AttemptRequest, bug: ForeignBug) -> AttemptRecord:
    """Repair *bug*, that of *request* with further visible tests."""
    conditions = request.conditions
    context: dict[str, object] = {
        "code": bug.code,
        "function": bug.function,
        "module": MODULE,
        "path": f"{MODULE}.py",
        "test_code": bug.test_code,
        "record": False,
        "ranker": conditions.ranker,
        "max_seconds": conditions.max_seconds,
        "max_evaluations": conditions.max_evaluations,
        "seed": conditions.seed,
        "docstring": False,  # it may have the hidden tests of `algorithms`
    }
    record = AttemptRecord.failed(request, "")
    try:
        proposers: dict[str, Proposer] = {}
        if conditions.proposer == "llm":
            context["proposers"] = {"llm": conditions.proposer_options}
        elif conditions.proposer:
            useless = conditions.proposer == "useless"
            samples = draw_samples(bug, conditions.seed, useless=useless)
            proposers[conditions.proposer] = ScriptedProposer(samples)
            if not useless:
                record.in_order, record.in_order_right = executions_in_order(samples)
        model = WorldModel.load(conditions.model) if conditions.model else None
        agent = SEDarwinAgent(world_model=model, proposers=proposers)
        result = asyncio.run(agent.evolve_solution(f"repair {bug.name}", context))
    except (ValueError, RuntimeError) as error:  # a refusal; see `evolve_solution`
        record.error = str(error)
        return record
    best, statistics = result["best_trajectory"], result["pool_statistics"]
    if result["success"] and not best["edits"]:
        record.error = "the given program passes its visible tests"
        return record
    record.executions = int(statistics["evaluations"])
    record.candidate_edits = int(statistics["candidate_edits"])
    record.seconds = result["total_time"]
    record.repaired = result["success"]
    record.edits, record.diff = best["edits"], best["diff"]
    record.ended, record.ranked_by = result["ended"], result["ranked_by"]
    record.checks, record.left_out = result["cases_used"], result["left_out"]
    record.certainty = _plain(result.get("certainty"))
    record.proposers = _plain(result["proposers"])
    if record.repaired:
        record.hidden_passed = _share_passed(bug, best["code_after"])
        record.right = record.hidden_passed == 1.0
    return record


def _share_passed(bug: ForeignBug, code: str) -> float:
    """Share of the hidden checks that *code* passes; 0 if they cannot be run with it."""
    try:
        passed = passed_checks(code, bug.function, bug.hidden_test_code)
    except ValueError:
        return 0.0
    return sum(passed) / len(passed)


def _plain(value: object) -> JsonValue:
    """*value* as JSON has it; other objects as text."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


def main() -> None:
    """Answer the request on stdin."""
    request = AttemptRequest.model_validate_json(sys.stdin.read())
    channel = os.dup(1)
    os.dup2(2, 1)  # other output goes to stderr
    record = attempt(request)
    with os.fdopen(channel, "w") as output:
        output.write(record.model_dump_json())


if __name__ == "__main__":
    main()
