"""Proposers beside the edits, in the real search and sandbox."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence

import pytest

from agents.se_darwin.result import EvolutionResult
from agents.se_darwin_agent import SEDarwinAgent
from infrastructure.agent_contract.proposer import EDITS, ProposalRequest, ProposedFunction

pytestmark = pytest.mark.process

# No edit of the space removes the oldest entry: it needs `next(iter(...))`.
CACHE = '''
def solve(cache, key, most):
    """Add a key with its number; the oldest entry goes."""
    result = dict(cache)
    result[key] = len(cache)
    if len(result) > most:
        result.popitem()
    return result
'''
RIGHT = CACHE.replace("result.popitem()", "del result[next(iter(result))]")
TESTS = [
    (({"a": 0, "b": 1}, "c", 2), {"b": 1, "c": 2}),
    (({"x": 5}, "y", 1), {"y": 1}),
    (({}, "z", 3), {"z": 0}),
    (({"a": 0}, "b", 2), {"a": 0, "b": 1}),
]
HIDDEN = [(({"k": 7, "l": 8, "m": 9}, "n", 3), {"l": 8, "m": 9, "n": 3})]


class Scripted:
    """Proposes given answers in rounds, and keeps the requests."""

    def __init__(self, *rounds: Sequence[str]) -> None:
        self._rounds = list(rounds)
        self.requests: list[ProposalRequest] = []

    def propose(self, request: ProposalRequest) -> Iterator[ProposedFunction]:
        self.requests.append(request)
        for code in self._rounds.pop(0) if self._rounds else ():
            yield ProposedFunction(code=code)

    def preview(self, request: ProposalRequest) -> str:
        del request
        return ""

    def summary(self) -> str:
        return "scripted \x1b[31m answers"


class Broken:
    def propose(self, request: ProposalRequest) -> Iterator[ProposedFunction]:
        yield ProposedFunction(code="def solve(cache, key, most):\n    return cache")
        raise RuntimeError("the wire\nis cut")

    def preview(self, request: ProposalRequest) -> str:
        del request
        return ""

    def summary(self) -> str:
        raise OSError("no summary")


class Stuck:
    """Waits until it is cancelled."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def propose(self, request: ProposalRequest) -> Iterator[ProposedFunction]:
        while not request.is_cancelled():
            self.ended.wait(0.01)
        self.ended.set()
        yield ProposedFunction(code="too late")

    def preview(self, request: ProposalRequest) -> str:
        del request
        return ""

    def summary(self) -> str:
        return ""


def _evolve(given: dict[str, object], **options: object) -> EvolutionResult:
    agent = SEDarwinAgent(proposers=given)  # type: ignore[arg-type]
    context = {"code": CACHE, "function": "solve", "tests": TESTS, "hidden_tests": HIDDEN}
    context |= {"ranker": "suspicion", "max_seconds": 30.0, "max_evaluations": 300}
    return asyncio.run(agent.evolve_solution("the oldest entry goes", context | options))


def test_a_proposed_line_repairs_what_no_edit_repairs() -> None:
    wrong = [CACHE.replace("popitem()", f"pop({key!r})") for key in ("a", "x", "q")]
    proposer = Scripted([*wrong, "no Python at all!", wrong[0]], [RIGHT])
    result = _evolve({"scripted": proposer, "broken": Broken()})
    best = result["best_trajectory"]
    assert result["success"]
    assert best["hidden_pass_rate"] == 1.0
    assert "+        del result[next(iter(result))]" in best["diff"]
    assert len(best["edits"]) == 1
    assert any(line.startswith("proposed by scripted: ") for line in best["lineage"])
    edits, scripted, broken = result["proposers"]
    assert (edits["name"], scripted["name"], broken["name"]) == (EDITS, "scripted", "broken")
    assert scripted["proposed"] == 6
    assert scripted["run"] == 4
    assert scripted["repairs"] == 1
    assert scripted["gained"] > 0.0
    assert scripted["dropped"] == {"not Python": 1, "proposed before": 1}
    assert broken["problem"] == "RuntimeError: the wire is cut"
    assert broken["summary"] == "OSError: no summary"
    first, second, *_ = proposer.requests
    assert first.program == CACHE
    assert first.function == "solve"
    assert [check.got for check in first.failing] == ["{'a': 0, 'b': 1}", "{'x': 5}"]
    assert first.failing[0].expected == "{'b': 1, 'c': 2}"
    assert CACHE.split("\n")[first.suspicious[0].line - 1].strip() == "result.popitem()"
    assert first.best is None
    assert [tried.passed for tried in second.tried]
    assert second.candidates == 24 - 5


def test_a_right_answer_is_preferred_to_more_that_repeat_the_checks() -> None:
    wrong = "def solve(n):\n    return 'I' * n if n < 4 else 'V' + 'I' * (n - 5)\n"
    right = wrong.replace("return", "return 'IV' if n % 5 == 4 else")
    right = "def solve(n):\n    out = ''\n"
    right += "    for value, sign in ((10, 'X'), (9, 'IX'), (5, 'V'), (4, 'IV'), (1, 'I')):\n"
    right += "        out += sign * (n // value)\n        n %= value\n    return out\n"
    wrong = right.replace("(9, 'IX'), ", "").replace("(4, 'IV'), ", "")
    cases = {4: "IV", 9: "IX", 14: "XIV", 3: "III", 8: "VIII", 20: "XX"}
    guards = "".join(
        f"    if {n - 1} < n < {n + 1}:\n        return {text!r}\n" for n, text in cases.items()
    )
    listed = wrong.replace("    out =", f"{guards}    out =", 1)
    tests = [((n,), text) for n, text in cases.items()]
    answers = Scripted([listed, listed, right])
    result = _evolve({"scripted": answers}, code=wrong, tests=tests, hidden_tests=[])
    assert result["proposers"][1]["repairs"] == 2
    assert "(9, 'IX')" in result["best_trajectory"]["diff"]
    certainty = result["certainty"]
    assert certainty is not None
    assert not certainty["memorised"]


def test_a_repair_by_edits_does_not_wait_for_a_proposer_without_end() -> None:
    stuck = Stuck()
    result = _evolve({"stuck": stuck}, code=RIGHT.replace("> most", "> most + 1"), max_seconds=6.0)
    assert result["success"]
    assert result["proposers"][1]["run"] == 0
    assert stuck.ended.wait(10), "it was told to stop"


def test_without_a_proposer_nothing_is_told() -> None:
    result = _evolve({}, max_evaluations=4)
    assert result["proposers"] == []
    with pytest.raises(ValueError, match="no proposer 'oracle' is installed; there are edits"):
        _evolve({}, proposers={"oracle": {}})
