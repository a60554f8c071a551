"""Decisions and outcomes become transitions of the replay buffer, each once."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from infrastructure.agent_contract import Transition
from infrastructure.decisions import DecisionLog, Place, WaitingOutcomes, take_in
from infrastructure.decisions.intake import STATE_FILE
from infrastructure.trajectories import ReplayBuffer

LATER = 2000.0


@pytest.fixture
def log(tmp_path: Path) -> Any:
    with closing(DecisionLog(tmp_path / "decisions")) as log:
        yield log


def decide(log: DecisionLog, name: str, **fields: Any) -> Place:
    record = {
        "kind": "decision",
        "id": name,
        "group": f"g-{name}",
        "observation": {"load": 0.5},
        "actions": [{"tool": "a"}, {"tool": "b"}],
        "chosen": 1,
        "propensity": 0.9,
        "deadline": 1000.0,
        "answer": {"version": "v1"},
    }
    return log.append([record | fields])[0]


def report(log: DecisionLog, name: str, of: Place, state: str = "recorded", **fields: Any) -> None:
    outcome = {
        "kind": "outcome",
        "id": name,
        "of": of,
        "state": state,
        "deadline": 1000.0,
        "next_observation": {"ok": "yes"},
        "reward": 1.0,
    }
    log.append([outcome | fields])


def recorded(folder: Path) -> list[Transition]:
    return list(ReplayBuffer(folder / "replay").read())


def take(folder: Path, now: float = 0.0) -> int:
    return take_in(folder / "decisions", folder / "replay", now=now).transitions


def test_an_outcome_becomes_a_transition_with_the_propensity(tmp_path: Path, log: Any) -> None:
    place = decide(log, "d1")
    assert take(tmp_path) == 0
    report(log, "d1", place, error="ValueError: no")
    assert take(tmp_path) == 1
    assert recorded(tmp_path) == [
        Transition(
            group="g-d1",
            observation={"load": 0.5},
            action={"tool": "b"},
            reward=1.0,
            next_observation={"ok": "yes"},
            propensity=0.9,
            info={"decision": "d1", "version": "v1", "error": "ValueError: no"},
        )
    ]
    assert take(tmp_path) == 0, "each is taken once"


def test_a_late_outcome_has_no_propensity(tmp_path: Path, log: Any) -> None:
    report(log, "d1", decide(log, "d1"), "late")
    assert take(tmp_path) == 1
    (transition,) = recorded(tmp_path)
    assert transition.propensity is None
    assert transition.info["late"] is True


def test_a_partial_outcome_counts_at_its_deadline_unless_a_final_one_comes(
    tmp_path: Path, log: Any
) -> None:
    first, second = decide(log, "d1"), decide(log, "d2")
    report(log, "d1", first, "partial", reward=0.5)
    report(log, "d2", second, "partial", reward=0.5)
    assert take(tmp_path, now=500.0) == take(tmp_path, now=1001.0) == 0
    report(log, "d2", second, reward=2.0)
    assert take(tmp_path, now=LATER) == 2
    assert sorted(transition.reward for transition in recorded(tmp_path)) == [0.5, 2.0]
    assert take(tmp_path, now=LATER) == 0


def test_transitions_are_taken_as_they_are(tmp_path: Path, log: Any) -> None:
    body = Transition(group="g", observation={"x": 1.0}, action={}, info={"from": "mail"})
    fields = {name: getattr(body, name) for name in Transition.__dataclass_fields__}
    log.append([{"kind": "transition", "id": "t1", "transition": fields}])
    assert take(tmp_path) == 1
    assert recorded(tmp_path) == [body]


def test_an_interrupted_call_is_repeated_and_doubles_nothing(tmp_path: Path, log: Any) -> None:
    """As after a kill between the segment and the state."""
    state = tmp_path / "decisions" / STATE_FILE
    report(log, "d1", decide(log, "d1"))
    take(tmp_path)
    before = state.read_bytes()
    report(log, "d2", decide(log, "d2"))
    take(tmp_path)
    state.write_bytes(before)
    report(log, "d3", decide(log, "d3"))
    assert take(tmp_path) == 2
    assert [t.info["decision"] for t in recorded(tmp_path)] == ["d1", "d2", "d3"]


def test_what_cannot_be_a_transition_is_left_out_with_its_reason(tmp_path: Path, log: Any) -> None:
    report(log, "d1", decide(log, "d1", observation={"load": {"deep": 1}}))
    report(log, "d2", Place(7, 0))
    report(log, "d3", decide(log, "d3"))
    result = take_in(log.folder, tmp_path / "replay", now=0.0)
    assert result.transitions == 1
    assert [line.split(":")[0] for line in result.skipped] == ["outcome d1", "decision d2"]


def test_a_damaged_state_stops_the_intake(tmp_path: Path, log: Any) -> None:
    report(log, "d1", decide(log, "d1"))
    (log.folder / STATE_FILE).write_text("{")
    with pytest.raises(OSError, match="restore"):
        take(tmp_path)
    assert recorded(tmp_path) == []


def test_what_waits_for_the_next_run_is_counted_in_the_log(tmp_path: Path, log: Any) -> None:
    waiting = WaitingOutcomes(tmp_path / "decisions")
    assert waiting.count() == 0, "before there is a log"
    first, second = decide(log, "d1"), decide(log, "d2")
    report(log, "d1", first)
    report(log, "d2", second, "partial")
    log.append([{"kind": "transition", "id": "t", "transition": {}}])
    assert waiting.count() == 2, "a partial outcome waits for its decision's final one"
    assert waiting.count(0.0) == 2
    assert WaitingOutcomes(tmp_path / "decisions").count() == 2, "after a restart"
    take(tmp_path)
    assert waiting.count() == 0
    report(log, "d3", decide(log, "d3"))
    assert waiting.count() == 1
