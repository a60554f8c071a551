"""The input on which repairs differ most, as a question that a person can answer in the tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agents.se_darwin.certainty.behaviour import key
from agents.se_darwin.certainty.choice import Candidate, entropy, without_result
from agents.se_darwin.certainty.inputs import ProgramInput
from agents.se_darwin.certainty.rendering import render_arguments, render_call, render_result
from agents.se_darwin.sandbox import Output

MAX_LENGTH = 300
# Costs are in nats, as the entropy that the answer removes.
_FAILURE_COST = 0.4  # of each result that is not a value
_CHANGE_COST = 0.05  # of each change of a recorded call
_UNUSUAL_COST = 0.5
_LETTER_COST = 0.003


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """An input on which the chosen repair and another one differ.

    Attributes:
        call: The call as Python.
        ours: What the chosen repair does, as the predicate of a sentence.
        theirs: What the other repair does.
        other: The other repair.
    """

    call: str
    ours: str
    theirs: str
    other: Candidate


def find_without_result(
    function: str, chosen: Candidate, inputs: Sequence[ProgramInput]
) -> str | None:
    """Return the shortest call for which *chosen* returns None, if no call of the tests does.

    None if it does not, or only for calls of more than `MAX_LENGTH` characters.
    """
    calls = [
        render_call(function, inputs[place].call)
        for place in without_result(chosen.behaviour, inputs)
    ]
    return min((call for call in calls if len(call) <= MAX_LENGTH), key=len, default=None)


def choose_question(
    function: str, candidates: Sequence[Candidate], inputs: Sequence[ProgramInput]
) -> Question | None:
    """Return the question whose answer tells most; None if all *candidates* behave alike.

    Short calls with few changes, whose results are values, are preferred, and arguments that are
    like those of the tests.

    Args:
        function: Name of the function.
        candidates: The chosen repair, then the others.
        inputs: Inputs on which they were run.
    """
    best: tuple[float, Question] | None = None
    chosen, *others = candidates
    for place, program_input in enumerate(inputs):
        ours = chosen.behaviour[place]
        differing = [rival for rival in others if key(rival.behaviour[place]) != key(ours)]
        if not differing:
            continue
        beliefs: dict[tuple[str, str, str], float] = {}
        for candidate in candidates:
            result = key(candidate.behaviour[place])
            beliefs[result] = beliefs.get(result, 0.0) + candidate.belief
        rival = max(differing, key=lambda it: beliefs[key(it.behaviour[place])])
        theirs = rival.behaviour[place]
        call = render_call(function, program_input.call)
        ours_text, theirs_text = _results(ours, theirs)
        unread = max(0, len(ours_text) + len(theirs_text) - MAX_LENGTH)
        value = (
            entropy([*beliefs.values()])
            - _FAILURE_COST * sum(it is None or it.kind != "value" for it in (ours, theirs))
            - _CHANGE_COST * program_input.changes
            - _UNUSUAL_COST * (not program_input.is_usual)
            - _LETTER_COST * (len(call) + unread)
        )
        if len(call) <= MAX_LENGTH and (best is None or value > best[0]):
            best = value, Question(call=call, ours=ours_text, theirs=theirs_text, other=rival)
    return best[1] if best else None


def _results(ours: Output | None, theirs: Output | None) -> tuple[str, str]:
    texts = render_result(ours), render_result(theirs)
    if texts[0] != texts[1] or ours is None or theirs is None:
        return texts
    return (
        f"leaves its arguments as {render_arguments(ours)}",
        f"leaves them as {render_arguments(theirs)}",
    )
