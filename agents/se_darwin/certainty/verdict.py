"""The assessment of a repair in plain words."""

from __future__ import annotations

from typing import Literal, TypedDict

from agents.se_darwin.certainty.assessment import Assessment
from agents.se_darwin.certainty.behaviour import key
from agents.se_darwin.certainty.choice import Candidate, pattern
from agents.se_darwin.certainty.inputs import is_whole_domain
from agents.se_darwin.edits.rewrite import rewrite
from agents.se_darwin.solution.evolved_program import EditDescriber, unified_diff
from agents.se_darwin.solution.request import EvolutionRequest

MAX_OTHERS = 5

CHECKS_PER_EDIT = 3
LEAST_CANDIDATES = 100
"""Fewest candidates of a search for other repairs that was cut short, for it to count."""
LEAST_INPUTS = 10
"""Fewest inputs on which all repairs must do the same."""

Level = Literal["well supported", "weakly supported"]


class OtherRepair(TypedDict):
    """A repair that passes all tests, too: edits, diff, and inputs on which it differs."""

    edits: list[str]
    diff: str
    differs: int


class Certainty(TypedDict):
    """How sure a repair is.

    ``level`` is one of `Level`, ``summary`` gives its reasons, and ``question`` is what a
    person can answer by an assert in the tests; it is empty if no input was found on which
    repairs differ, or on which the repair returns None and no call of the tests does. ``call`` is
    the call that it is about.
    ``checks`` counts the checks, ``failed_before`` those that the program as given failed,
    ``edits`` those of the repair, ``candidates`` those that were run to find other repairs,
    ``repairs`` those found, the chosen one included, ``behaviours`` their groups that do the
    same on all ``inputs``, and ``differing`` the inputs on which not all do the same.
    ``examples`` are those in the docstring, if they count; ``contradicted`` those that the repair
    contradicts; ``memorised`` tells whether it probably repeats values of the checks, and
    ``is_first`` whether it is the first repair found. ``others``
    are repairs of the other groups, ``note`` tells what could not be done, and ``seconds`` how
    long all this took.
    """

    level: Level
    summary: str
    question: str
    call: str
    checks: int
    failed_before: int
    edits: int
    candidates: int
    repairs: int
    behaviours: int
    inputs: int
    differing: int
    examples: int
    contradicted: int
    memorised: bool
    is_first: bool
    others: list[OtherRepair]
    note: str
    seconds: float


def describe_certainty(
    assessment: Assessment, describer: EditDescriber, request: EvolutionRequest
) -> Certainty:
    """Return *assessment* in plain words.

    Args:
        assessment: The assessment.
        describer: Describes edits with the lines of the caller's file.
        request: The caller's request.
    """
    chosen, *others = assessment.candidates
    groups: dict[object, Candidate] = {}
    for candidate in others:
        groups.setdefault(pattern(candidate.behaviour), candidate)
    groups.pop(pattern(chosen.behaviour), None)
    return Certainty(
        level=_level(assessment, 1 + len(groups)),
        summary=_summary(assessment, 1 + len(groups)),
        question=_question(assessment, describer),
        call=_asked_call(assessment),
        checks=len(chosen.repair.passed),
        failed_before=assessment.root.passed.count(False),
        edits=len(chosen.repair.edits),
        candidates=assessment.rivals.candidates,
        repairs=len(assessment.rivals.repairs),
        behaviours=1 + len(groups),
        inputs=len(assessment.inputs),
        differing=assessment.differing,
        examples=assessment.examples,
        contradicted=len(assessment.contradicted),
        memorised=assessment.is_memorised,
        is_first=chosen.repair is assessment.rivals.repairs[0],
        others=[
            _other(group, chosen, describer, request)
            for group in list(groups.values())[:MAX_OTHERS]
        ],
        note=assessment.note,
        seconds=assessment.seconds,
    )


def _level(assessment: Assessment, behaviours: int) -> Level:
    """Return ``weakly supported`` if repairs differ or few were looked for, or for few checks.

    Also if few inputs were compared, if it returns None where no call of the tests does, if it
    contradicts an example in the docstring, if it repeats values of the checks, if it could have
    changed what they check, or if it is a proposer's and the only repair.
    """
    edits, checks = assessment.places, len(assessment.chosen.passed)
    rivals, compared = assessment.rivals, len(assessment.candidates)
    has_inputs = len(assessment.inputs) >= LEAST_INPUTS or is_whole_domain(assessment.inputs)
    is_compared = compared == len(rivals.repairs) and has_inputs
    is_searched = rivals.candidates >= LEAST_CANDIDATES or not rivals.is_cut
    is_weak = (
        behaviours > 1
        or not (is_searched and is_compared)
        or assessment.without_result is not None
        or bool(assessment.contradicted)
        or assessment.is_memorised
        or assessment.is_exposed
        or assessment.is_alone
        or (edits > 1 and checks < CHECKS_PER_EDIT * edits)
    )
    return "weakly supported" if is_weak else "well supported"


def _summary(assessment: Assessment, behaviours: int) -> str:
    chosen = assessment.chosen
    failed, places = assessment.root.passed.count(False), assessment.places
    place = "edit" if places == len(chosen.edits) else "new line"
    parts = [
        f"{failed} of {len(chosen.passed)} checks failed before",
        f"{places} {place}{'' if places == 1 else 's'}",
    ]
    if assessment.examples:
        wrong = len(assessment.contradicted)
        how = f"contradicts {wrong} of the" if wrong else "agrees with the"
        noun = "example" if assessment.examples == 1 else "examples"
        parts.append(f"{how} {assessment.examples} {noun} in the docstring")
    if assessment.is_memorised:
        parts.append("it probably repeats values of the checks, or branches for their inputs only")
    if assessment.is_exposed:
        parts.append(
            "its tests ran in one process with it, and it could have changed what they check"
        )
    if assessment.is_alone:
        parts.append("a proposer wrote it, and no second repair does the same")
    if assessment.unchanged >= LEAST_INPUTS:
        parts.append(
            f"it changes nothing on {assessment.unchanged} inputs besides those of the tests, "
            "and may be a special case for them"
        )
    others, candidates = len(assessment.rivals.repairs) - 1, assessment.rivals.candidates
    inputs = len(assessment.inputs)
    is_whole = is_whole_domain(assessment.inputs)
    if not others:
        few = f"all {inputs} inputs" if is_whole else f"{inputs} inputs only"
        compared = "" if inputs >= LEAST_INPUTS else f", compared on {few}"
        parts.append(f"no other repair among {candidates} further candidates{compared}")
    elif behaviours == 1:
        every = "all " if is_whole else ""
        same = f"do the same on {every}{inputs} inputs" if inputs else "were not compared"
        parts.append(f"{others} of {candidates} further candidates pass too, and {same}")
    else:
        parts.append(
            f"{others} of {candidates} further candidates pass too, and differ on "
            f"{assessment.differing} of {inputs} inputs"
        )
    return "; ".join(parts)


def _question(assessment: Assessment, describer: EditDescriber) -> str:
    question, nothing = assessment.question, assessment.without_result
    if assessment.contradicted:
        return (
            f"The docstring shows another result of {assessment.contradicted[0]} than this repair "
            "gives. Which is right? Correct the docstring, or add an assert to the tests."
        )
    if question is None and nothing is not None:
        return (
            f"{nothing} returns None with this repair, which no call in the tests does. "
            "Is that right? Add an assert to the tests."
        )
    if question is None:
        return ""
    rival_edits = "; ".join(describer.describe(question.other.repair.edits))
    return (
        f"{question.call} {question.ours} with this repair, and {question.theirs} with another one "
        f"({rival_edits}). Which is right? Add an assert to the tests."
    )


def _asked_call(assessment: Assessment) -> str:
    if assessment.contradicted:
        return assessment.contradicted[0]
    if assessment.question is not None:
        return assessment.question.call
    return assessment.without_result or ""


def _other(
    rival: Candidate, chosen: Candidate, describer: EditDescriber, request: EvolutionRequest
) -> OtherRepair:
    after = rewrite(request.code, rival.repair.source)
    return OtherRepair(
        edits=describer.describe(rival.repair.edits),
        diff=unified_diff(request.code, after, request.path),
        differs=sum(
            key(theirs) != key(ours)
            for theirs, ours in zip(rival.behaviour, chosen.behaviour, strict=True)
        ),
    )
