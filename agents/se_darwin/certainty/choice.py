"""Choice of one repair of several that pass all tests."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log

from agents.se_darwin.certainty.behaviour import Behaviour, is_opaque, key
from agents.se_darwin.certainty.inputs import ProgramInput
from agents.se_darwin.certainty.leftovers import count_leftovers
from agents.se_darwin.edits import Edit
from agents.se_darwin.tasks.evaluation import Evaluation

# Evidence is a logarithm: a cost of 1 makes a repair e times less credible.
CHANCE_WEIGHT = 0.05  # of the logarithm of the ranker's chance
EDIT_COST = 2.0  # of each edit
AGREEMENT_WEIGHT = 0.5  # of the logarithm of the share of a proposer's candidates that it is
CHANGE_COST = 4.0  # if all results near passing tests change
FAILURE_COST = 4.0  # if it fails on all inputs and the program as given does not
NO_RESULT_COST = 2.0  # if it returns None on all inputs
EXAMPLE_COST = 10.0  # of each contradicted example
CATCH_ALL_COST = 1.0  # of each handler of every exception
LEFTOVER_COST = 1.5  # of each statement or variable that does nothing
EQUALITY_COST = 1.0  # of each comparison that now holds for one value only

_NOTHING = "None"


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A repair and what it does.

    Attributes:
        repair: The repair.
        behaviour: Its results on all inputs.
        belief: Share of all belief that it is right, if one of the repairs is; they add up to 1.
    """

    repair: Evaluation
    behaviour: Behaviour
    belief: float


def informative(behaviours: Sequence[Behaviour], given: Behaviour) -> list[int]:
    """Return the positions of inputs on which programs can be compared.

    All of them were run there, not all of them fail, and some of *behaviours* has a result there
    that can be compared.
    """
    run_by_all = min(map(len, (given, *behaviours)))  # a program that hangs has fewer results
    return [
        place
        for place in range(run_by_all)
        if any(not _fails(behaviour[place]) for behaviour in (*behaviours, given))
        if not all(is_opaque(behaviour[place]) for behaviour in behaviours)
    ]


def weigh(
    repairs: Sequence[Evaluation],
    behaviours: Sequence[Behaviour],
    given: Behaviour,
    *,
    inputs: Sequence[ProgramInput],
    is_passing: Sequence[bool],
    evidence: Sequence[float],
) -> list[Candidate]:
    """Return a candidate for each repair, the most credible one first.

    A repair is credible if it has few edits, if the ranker expected it, if it leaves alone what the
    program as given does near passing tests, if it does not fail on inputs on which the program
    as given does not, if it returns None nowhere, unless the calls of the tests do, if it does
    what the examples in the docstring show, if it does not catch every exception, if it leaves
    nothing in the program that does nothing, and if it makes no ``>=`` an ``==``. Inputs that are
    unlike the calls of the tests do not count.

    Args:
        repairs: Repairs, with the fewest edits possible.
        behaviours: Results of each.
        given: Results of the program as given.
        inputs: The inputs; see `informative`.
        is_passing: Whether the tests that make a recorded call pass, by `ProgramInput.origin`.
        evidence: What else speaks for each repair; see `weigh_evidence`.
    """
    useful = [
        place
        for place, program_input in enumerate(inputs)
        if program_input.changes and program_input.is_usual
    ]
    near = [place for place in useful if is_passing[inputs[place].origin]]
    scores = []
    for repair, behaviour, repair_evidence in zip(repairs, behaviours, evidence, strict=True):
        changed = sum(key(behaviour[place]) != key(given[place]) for place in near)
        failed = sum(_fails(behaviour[place]) and not _fails(given[place]) for place in useful)
        nothing = len(without_result(behaviour, inputs))
        scores.append(
            repair_evidence
            - EDIT_COST * len(repair.edits)
            - CHANGE_COST * changed / (len(near) + 1)
            - FAILURE_COST * failed / (len(useful) + 1)
            - NO_RESULT_COST * nothing / (len(useful) + 1)
            - CATCH_ALL_COST * _catch_alls(repair.source)
            - LEFTOVER_COST * count_leftovers(repair.source)
            - EQUALITY_COST * sum(map(_is_equality, repair.edits))
        )
    highest = max(scores)
    weights = [exp(score - highest) for score in scores]
    total = sum(weights)
    candidates = [
        Candidate(repair=repair, behaviour=behaviour, belief=weight / total)
        for repair, behaviour, weight in zip(repairs, behaviours, weights, strict=True)
    ]
    return sorted(candidates, key=lambda candidate: -candidate.belief)


def _is_equality(edit: Edit) -> bool:
    """Whether it turns ``<``, ``<=``, ``>`` or ``>=`` into ``==`` or ``!=``."""
    is_ordering = edit.kind == "comparison" and edit.old in ("Lt", "LtE", "Gt", "GtE")
    return is_ordering and edit.new.startswith(("Eq", "NotEq"))


def _catch_alls(source: str) -> int:
    """Number of handlers that also hide the mistakes nobody expected."""
    return sum(
        isinstance(node, ast.ExceptHandler)
        and (node.type is None or ast.unparse(node.type) in ("Exception", "BaseException"))
        for node in ast.walk(ast.parse(source))
    )


def weigh_evidence(log_chance: float, contradicted: int) -> float:
    """Return what speaks for a repair besides its edits and results, as a logarithm.

    Args:
        log_chance: Logarithm of the ranker's chance of the repair.
        contradicted: Number of the examples in the docstring that it contradicts.
    """
    return CHANCE_WEIGHT * log_chance - EXAMPLE_COST * contradicted


def weigh_proposal(agreement: float, edits: int, contradicted: int) -> float:
    """Return what speaks for a repair that a proposer wrote, besides its results, as a logarithm.

    Its edits do not speak against it, as in `weigh` they do: nobody tried them one by one until
    some passed the tests. Instead it is as credible as its proposer's candidates agree.

    Args:
        agreement: Share of the candidates of its proposer that are this program, in (0, 1].
        edits: Number of its edits.
        contradicted: Number of the examples in the docstring that it contradicts.
    """
    evidence = EDIT_COST * edits + AGREEMENT_WEIGHT * log(agreement)
    return evidence - EXAMPLE_COST * contradicted


def without_result(behaviour: Behaviour, inputs: Sequence[ProgramInput]) -> list[int]:
    """Return the positions where a repair returns ``None`` although no call of the tests does.

    It has probably reached the end of the function.
    """
    values = {
        place: output.text
        for place, output in enumerate(behaviour)
        if output and output.kind == "value"
    }
    from_tests = [text for place, text in values.items() if not inputs[place].changes]
    if not from_tests or _NOTHING in from_tests:
        return []
    return [place for place, text in values.items() if text == _NOTHING]


def pattern(behaviour: Behaviour) -> tuple[object, ...]:
    """Return what is equal for two programs that behave alike on every input."""
    return tuple(map(key, behaviour))


def entropy(beliefs: Sequence[float]) -> float:
    """Return the entropy of *beliefs* in nats: 0 if there is only one possibility."""
    return -sum(belief * log(belief) for belief in beliefs if belief > 0.0)


def _fails(output: object) -> bool:
    kind = getattr(output, "kind", None)
    return kind is None or kind == "raise"
