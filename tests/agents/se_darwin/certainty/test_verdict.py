from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from agents.se_darwin.certainty.assessment import Assessment
from agents.se_darwin.certainty.choice import Candidate
from agents.se_darwin.certainty.inputs import ProgramInput
from agents.se_darwin.certainty.question import choose_question, find_without_result
from agents.se_darwin.certainty.rivals import Rivals
from agents.se_darwin.certainty.verdict import (
    LEAST_CANDIDATES,
    LEAST_INPUTS,
    Certainty,
    describe_certainty,
)
from agents.se_darwin.edits import EditSpace
from agents.se_darwin.fork_server.wire import ProgramNames, Wire
from agents.se_darwin.solution.evolved_program import EditDescriber
from agents.se_darwin.solution.request import EvolutionRequest

Make = Callable[..., Any]
MANY = ("1",) * LEAST_INPUTS
CODE = "def solve(x):\n    return x + 1\n"


@pytest.fixture
def describe(repair: Make, outputs: Make) -> Callable[..., Certainty]:
    """Describe an assessment of repairs with given results on the inputs 0, 1, ..."""

    def describe(
        *results: tuple[str, ...],
        edits: int = 1,
        checks: int = 3,
        candidates_run: int = 20,
        is_cut: bool = False,
        contradicted: tuple[str, ...] = (),
        is_memorised: bool = False,
        is_exposed: bool = False,
        is_alone: bool = False,
        places: int = 0,
        inputs: tuple[object, ...] = (),
        unchanged: int = 0,
    ) -> Certainty:
        repairs = [repair(edits, (True,) * checks) for _ in results]
        wire = Wire(ProgramNames(ModuleType("program")))
        inputs = [
            ProgramInput(
                call={"values": wire.encode(x), "names": []}, origin=0, changes=int(x != 0)
            )
            for x in inputs or range(len(results[0]))
        ]
        candidates = [
            Candidate(repair=each, behaviour=outputs(*texts), belief=1 / len(results))
            for each, texts in zip(repairs, results, strict=True)
        ]
        assessment = Assessment(
            root=repair(0, (False,) + (True,) * (checks - 1)),
            candidates=candidates,
            inputs=inputs,
            differing=sum(len(set(column)) > 1 for column in zip(*results, strict=True)),
            rivals=Rivals(
                repairs=tuple(repairs),
                origins={},
                candidates=candidates_run,
                outcomes=(),
                is_cut=is_cut,
            ),
            question=choose_question("solve", candidates, inputs),
            without_result=find_without_result("solve", candidates[0], inputs),
            examples=2 * len(contradicted),
            contradicted=contradicted,
            note="",
            seconds=0.5,
            places=places or edits,
            is_memorised=is_memorised,
            is_exposed=is_exposed,
            is_alone=is_alone,
            unchanged=unchanged,
        )
        request = EvolutionRequest.from_context(
            {"code": CODE, "function": "solve", "tests": [((1,), 2)]}
        )
        return describe_certainty(
            assessment, EditDescriber(CODE, EditSpace(CODE, "solve")), request
        )

    return describe


def test_a_single_repair_is_well_supported(describe: Callable[..., Certainty]) -> None:
    certainty = describe(MANY)
    assert certainty["level"] == "well supported"
    assert re.findall(r"\d+", certainty["summary"]) == ["1", "3", "1", "20"]
    assert "no other repair" in certainty["summary"]
    assert (certainty["question"], certainty["call"], certainty["others"]) == ("", "", [])


def test_a_repair_against_the_docstring_is_weakly_supported(
    describe: Callable[..., Certainty],
) -> None:
    certainty = describe(("1", "2"), contradicted=("solve(7)",))
    assert certainty["level"] == "weakly supported"
    assert "contradicts 1 of the 2 examples" in certainty["summary"]
    assert "another result of solve(7)" in certainty["question"]
    assert certainty["call"] == "solve(7)"


def test_repairs_that_differ_leave_a_question(describe: Callable[..., Certainty]) -> None:
    certainty = describe(("1", "2"), ("1", "3"), ("1", "2"))
    assert certainty["level"] == "weakly supported"
    assert re.search("2 of 20 .* differ on 1 of 2 inputs$", certainty["summary"])
    assert re.match(r"solve\(1\) returns 2 .* returns 3 .*\(line 2: ", certainty["question"])
    assert certainty["question"].endswith("Add an assert to the tests.")
    assert certainty["call"] == "solve(1)"
    [other] = certainty["others"]
    assert other["differs"] == 1
    assert (certainty["repairs"], certainty["behaviours"]) == (3, 2)


@pytest.mark.parametrize(
    ("results", "edits", "checks"),
    [((("1", "2"), ("1", "3")), 1, 9), ((("1", "2"),), 2, 5)],
    ids=["two behaviours", "two edits for five checks"],
)
def test_a_doubtful_repair_is_weakly_supported(
    describe: Callable[..., Certainty],
    results: tuple[tuple[str, ...], ...],
    edits: int,
    checks: int,
) -> None:
    assert describe(*results, edits=edits, checks=checks)["level"] == "weakly supported"


def test_repairs_that_were_not_compared_support_nothing(
    describe: Callable[..., Certainty],
) -> None:
    certainty = describe((), ())
    assert re.search("1 of 20 .* not compared$", certainty["summary"])
    assert certainty["level"] == "weakly supported"


def test_repairs_that_do_the_same_on_few_inputs_are_weakly_supported(
    describe: Callable[..., Certainty],
) -> None:
    few = MANY[1:]
    assert describe(few, few)["level"] == describe(few)["level"] == "weakly supported"
    assert "compared on 9 inputs only" in describe(few)["summary"]
    assert describe(MANY, MANY)["level"] == "well supported"


@pytest.mark.parametrize(
    ("candidates_run", "is_cut", "level"),
    [
        (0, True, "weakly supported"),
        (LEAST_CANDIDATES - 1, True, "weakly supported"),
        (LEAST_CANDIDATES, True, "well supported"),
        (5, False, "well supported"),
    ],
    ids=["none", "few", "enough", "all that there are"],
)
def test_few_further_candidates_support_nothing(
    describe: Callable[..., Certainty], candidates_run: int, is_cut: bool, level: str
) -> None:
    assert describe(MANY, candidates_run=candidates_run, is_cut=is_cut)["level"] == level


def test_a_repair_that_returns_nothing_leaves_a_question(
    describe: Callable[..., Certainty],
) -> None:
    certainty = describe(("1", "2", "None"))
    assert certainty["level"] == "weakly supported"
    assert certainty["question"].startswith("solve(2) returns None with this repair, ")
    assert describe(("None", "2", "None"))["question"] == ""


def test_a_repair_that_repeats_the_tests_is_weakly_supported(
    describe: Callable[..., Certainty],
) -> None:
    certainty = describe(("1", "2"), candidates_run=200, is_memorised=True)

    assert certainty["level"] == "weakly supported"
    assert certainty["memorised"]
    assert "repeats values of the checks" in certainty["summary"]


def test_a_repair_that_could_have_changed_its_tests_is_weakly_supported(
    describe: Callable[..., Certainty],
) -> None:
    certainty = describe(MANY, is_exposed=True)
    assert certainty["level"] == "weakly supported"
    assert "could have changed what they check" in certainty["summary"]


def test_a_proposal_that_no_second_repair_confirms_is_weakly_supported(
    describe: Callable[..., Certainty],
) -> None:
    certainty = describe(MANY, is_alone=True, checks=18, places=6)
    assert certainty["level"] == "weakly supported"
    assert "; 6 new lines; a proposer wrote it, and no second repair" in certainty["summary"]


def test_all_inputs_that_there_are_are_enough(describe: Callable[..., Certainty]) -> None:
    results, truths = ("1", "2"), (False, True)
    alone, agreeing = describe(results, inputs=truths), describe(results, results, inputs=truths)
    assert alone["level"] == agreeing["level"] == "well supported"
    assert "compared on all 2 inputs" in alone["summary"]
    assert "do the same on all 2 inputs" in agreeing["summary"]
    for other in ((False,), (False, 1), (False, None), (False, [True])):
        assert describe(("1",) * len(other), inputs=other)["level"] == "weakly supported"


def test_a_repair_that_changes_nothing_elsewhere_is_told(
    describe: Callable[..., Certainty],
) -> None:
    assert "changes nothing on 10 inputs" in describe(("1",), unchanged=10)["summary"]
    assert "changes nothing" not in describe(("1",), unchanged=LEAST_INPUTS - 1)["summary"]
