from __future__ import annotations

from agents.se_darwin.proposals.shares import PROBES, Shares, worth
from infrastructure.agent_contract.proposer import EDITS


def _play(shares: Shares, count: int, gains: dict[str, float]) -> dict[str, int]:
    turns = dict.fromkeys(shares.accounts, 0)
    for _ in range(count):
        name = shares.next(list(shares.accounts), turns)
        turns[name] += 1
        shares.count(name, gain=gains.get(name, 0.0), is_repair=False)
    return turns


def test_a_proposer_that_gains_nothing_costs_two_and_a_fifteenth_of_the_edits() -> None:
    shares = Shares(["useless"])
    turns = dict.fromkeys(shares.accounts, 0)
    for _ in range(500):
        turns[shares.next([EDITS, "useless"], turns)] += 1
        assert turns["useless"] <= PROBES + turns[EDITS] / 15
    assert turns["useless"] >= 30, "nor does it starve"


def test_several_useless_proposers_share_the_floor() -> None:
    turns = _play(Shares(["one", "two", "three"]), 1000, {})
    assert 56 < 1000 - turns[EDITS] <= 70
    assert min(turns.values()) > 15


def test_a_share_follows_what_was_gained() -> None:
    shares = Shares(["good", "bad"])
    for _ in range(20):
        shares.count(EDITS, gain=0.01, is_repair=False)
    shares.count("good", gain=0.5, is_repair=False)
    assert shares.share("good") > 0.6
    assert shares.share("bad") < 0.1
    for _ in range(400):
        shares.count("good", gain=0.0, is_repair=False)
    assert shares.share("good") < 0.2


def test_candidates_as_good_as_the_given_program_let_others_follow_at_once() -> None:
    shares = Shares(["good"])
    turns = dict.fromkeys(shares.accounts, 0)
    for _ in range(30):
        name = shares.next(list(shares.accounts), turns)
        turns[name] += 1
        of_this = worth(0.5, 0.5) if name == "good" else 0.0
        shares.count(name, gain=0.0, is_repair=False, worth=of_this)
    assert turns["good"] > 20


def test_a_candidate_is_worth_something_unless_it_is_worse_than_the_given_program() -> None:
    assert worth(0.0, 0.0) == worth(0.4, 0.5) == 0.0
    assert 0.0 < worth(0.5, 0.5) < worth(0.75, 0.5) < worth(1.0, 0.5) == worth(1.0, 0.0)


def test_without_edits_the_others_take_all_turns() -> None:
    shares = Shares(["one"])
    assert shares.next(["one"], {EDITS: 0, "one": 50}) == "one"
    assert shares.next([EDITS], {EDITS: 0, "one": 0}) == EDITS
