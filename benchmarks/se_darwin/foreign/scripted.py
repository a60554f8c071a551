"""Proposers whose answers are known: one that is right in one of twelve, and a useless one.

A wrong answer is a mutant of the right program, by an edit of the agent, by two, or by an operator
that no edit inverts (`benchmarks.se_darwin.mutation_operators`), drawn by seed; it fails a visible
or a hidden test. So most wrong answers are nearly right, and some pass every visible test. The
useless proposer's answers fail every visible check, like an answer to another question.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from agents.se_darwin.edits import EditSpace
from agents.se_darwin.edits.edit_space import definition_of
from agents.se_darwin.sandbox import Sandbox
from agents.se_darwin.solution.request import EvolutionRequest
from agents.se_darwin.tasks import RepairTask
from benchmarks.se_darwin.foreign.bug import MODULE, ForeignBug
from benchmarks.se_darwin.mutation_operators import out_of_grammar_mutants
from infrastructure.agent_contract.proposer import ProposalRequest, ProposedFunction

ProposerName = Literal["", "scripted", "useless", "llm"]
SAMPLES = 24
PER_ROUND = 12
_DRAWN = 60  # mutants of each kind that are run to find wrong ones
_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """An answer.

    Attributes:
        code: Source of the function.
        is_right: Whether it passes all visible and hidden tests.
        passes: Whether it passes all visible tests.
    """

    code: str
    is_right: bool
    passes: bool


class ScriptedProposer:
    """Proposes given answers, twelve a round.

    Args:
        samples: The answers, in order.
    """

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._samples = list(samples)
        self._done = 0

    def propose(self, request: ProposalRequest) -> Iterator[ProposedFunction]:
        """See `infrastructure.agent_contract.proposer.Proposer`."""
        del request
        for sample in self._samples[self._done : self._done + PER_ROUND]:
            self._done += 1
            yield ProposedFunction(code=sample.code)

    def preview(self, request: ProposalRequest) -> str:
        """See `infrastructure.agent_contract.proposer.Proposer`."""
        del request
        return ""

    def summary(self) -> str:
        """See `infrastructure.agent_contract.proposer.Proposer`."""
        return ""


def draw_samples(bug: ForeignBug, seed: int, *, useless: bool = False) -> list[Sample]:
    """Return `SAMPLES` answers to *bug*; without *useless* one of each twelve is right.

    Raises:
        ValueError: Its tests cannot be run, or there are not enough mutants.
    """
    rng = Random(f"{seed}/{bug.name}/{useless}")
    right = ast.unparse(definition_of(ast.parse(bug.right_code), bug.function))
    mutants = list(dict.fromkeys(_mutants(bug, rng)))
    wrong = _wrong_samples(bug, mutants)
    if useless:
        return [Sample(code=text, is_right=False, passes=False) for text in _nonsense(bug, rng)]
    if len(wrong) < PER_ROUND - 1:
        raise ValueError(f"only {len(wrong)} wrong answers to {bug.name}")
    samples: list[Sample] = []
    for _ in range(SAMPLES // PER_ROUND):
        part = rng.sample(wrong, PER_ROUND - 1)
        place = rng.randrange(PER_ROUND)
        samples += [*part[:place], Sample(code=right, is_right=True, passes=True), *part[place:]]
    return samples


def executions_in_order(samples: Sequence[Sample]) -> tuple[int, bool]:
    """Return how many of *samples* run in order until one passes, and whether that is right."""
    for number, sample in enumerate(samples, 1):
        if sample.passes:
            return number, sample.is_right
    return len(samples), False


def _mutants(bug: ForeignBug, rng: Random) -> Iterator[str]:
    """Yield programs that differ from the right one at one or two places."""
    space = EditSpace(bug.right_code, bug.function)
    others = [text for _, text in out_of_grammar_mutants(bug.right_code, bug.function)]
    yield from rng.sample(others, min(_DRAWN, len(others)))
    for edit in rng.sample(space.edits, min(_DRAWN, len(space.edits))):
        yield space.program([edit])
    for _ in range(_DRAWN):
        first, second = rng.sample(space.edits, 2)
        if first.node != second.node:
            yield space.program([first, second])


def _wrong_samples(bug: ForeignBug, programs: Sequence[str]) -> list[Sample]:
    """Return those of *programs* that fail a visible or a hidden test."""
    passes = _passes(bug, bug.test_code, programs)
    hidden = _passes(bug, bug.hidden_test_code, programs)
    return [
        Sample(
            code=ast.unparse(definition_of(ast.parse(program), bug.function)),
            is_right=False,
            passes=is_passing,
        )
        for program, is_passing, is_right in zip(programs, passes, hidden, strict=True)
        if not (is_passing and is_right)
    ]


def _passes(bug: ForeignBug, tests: str, programs: Sequence[str]) -> list[bool]:
    request = EvolutionRequest(code=bug.code, function=bug.function, module=MODULE, test_code=tests)
    with request.sandbox() as sandbox:
        task = request.task(sandbox, _SECONDS)
        return _screen(task, sandbox, programs)


def _screen(task: RepairTask, sandbox: Sandbox, programs: Sequence[str]) -> list[bool]:
    done = task.screen(sandbox, [(frozenset(), program) for program in programs])
    return [evaluation.fixed for evaluation in done]


def _nonsense(bug: ForeignBug, rng: Random) -> Iterator[str]:
    """Yield answers without any relation to the question: other constants each time."""
    definition = definition_of(ast.parse(bug.code), bug.function)
    for _ in range(SAMPLES):
        value = rng.choice([repr(rng.randrange(10_000)), repr(str(rng.random())), "object()"])
        definition.body = list(ast.parse(f"_{rng.randrange(10**9)} = {value}\nraise OSError").body)
        yield ast.unparse(definition)
