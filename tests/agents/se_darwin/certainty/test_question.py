from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

from agents.se_darwin.certainty.choice import Candidate
from agents.se_darwin.certainty.inputs import ProgramInput
from agents.se_darwin.certainty.question import choose_question
from agents.se_darwin.fork_server.wire import ProgramNames, Wire

Make = Callable[..., Any]


def inputs_of(*arguments: object) -> list[ProgramInput]:
    wire = Wire(ProgramNames(ModuleType("program")))
    return [
        ProgramInput(call={"values": wire.encode(each), "names": []}, origin=0, changes=1)
        for each in arguments
    ]


def test_the_shortest_input_with_two_values_is_asked(repair: Make, outputs: Make) -> None:
    candidates = [
        Candidate(repair=repair(), behaviour=outputs("1", "2", "!KeyError", "4"), belief=0.6),
        Candidate(repair=repair(), behaviour=outputs("1", "3", "3", "5"), belief=0.4),
    ]
    question = choose_question("solve", candidates, inputs_of(1, [1, 2, 3, 4, 5, 6], 3, [7]))
    assert question is not None
    assert (question.call, question.ours, question.theirs) == (
        "solve([7])",
        "returns 4",
        "returns 5",
    )
    assert question.other is candidates[1]


def test_what_tests_would_pass_is_asked_before_what_they_would_not(
    repair: Make, outputs: Make
) -> None:
    candidates = [
        Candidate(repair=repair(), behaviour=outputs("1", "2"), belief=0.6),
        Candidate(repair=repair(), behaviour=outputs("3", "4"), belief=0.4),
    ]
    short, long = inputs_of([2, 1], [1, 2, 3, 4, 5, 6])
    question = choose_question("solve", candidates, [replace(short, is_usual=False), long])
    assert question is not None
    assert question.call == "solve([1, 2, 3, 4, 5, 6])"


def test_results_that_nobody_can_read_are_not_asked_about(repair: Make, outputs: Make) -> None:
    candidates = [
        Candidate(repair=repair(), behaviour=outputs("1" * 9000, "2"), belief=0.6),
        Candidate(repair=repair(), behaviour=outputs("1" * 9001, "3"), belief=0.4),
    ]
    question = choose_question("solve", candidates, inputs_of(1, [1, 2, 3, 4, 5, 6]))
    assert question is not None
    assert question.ours == "returns 2"


def test_there_is_no_question_if_repairs_agree(repair: Make, outputs: Make) -> None:
    alone = Candidate(repair=repair(), behaviour=outputs("1"), belief=0.5)
    assert choose_question("solve", [alone, alone], inputs_of(1)) is None
    assert choose_question("solve", [alone], []) is None


def test_a_difference_in_the_arguments_is_told(repair: Make, outputs: Make) -> None:
    [ours] = outputs("None")
    theirs = type(ours)(kind="value", text="None", arguments="[[1]]")
    candidates = [
        Candidate(repair=repair(), behaviour=(ours,), belief=0.5),
        Candidate(repair=repair(), behaviour=(theirs,), belief=0.5),
    ]
    question = choose_question("solve", candidates, inputs_of([]))
    assert question is not None
    assert question.ours == "leaves its arguments as []"
    assert question.theirs == "leaves them as [[1]]"
