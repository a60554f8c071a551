"""Decisions as dsjson: there and back, and lines of any content."""

import json
import math
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrastructure.decisions import DecisionLog, LogBusyError, take_in
from infrastructure.decisions.dsjson import DsjsonError, read_line, read_lines, write_line
from infrastructure.decisions.logged import LoggedDecision, append_decisions, logged_decisions
from infrastructure.trajectories import ReplayBuffer

DECISION = LoggedDecision(
    id="d-1",
    group="ticket 7",
    at=1764000000.25,
    observation={"load": 0.5, "topic": "login", "tags": ["a", "b"]},
    actions=[{"tool": "x"}, {"tool": "y", "cost": 2}, {"tool": "z"}],
    chosen=1,
    propensity=0.7,
    propensities=[0.2, 0.7, 0.1],
    version="v1",
    reward=0.75,
    next_observation={"ok": "yes"},
)
FOREIGN = {
    "_label_cost": -1,
    "_label_probability": 0.8,
    "_label_Action": 2,
    "_labelIndex": 1,
    "o": [{"v": 1.0, "EventId": "e/1"}],
    "Timestamp": "2026-11-25T12:00:00.1234567Z",
    "Version": "1",
    "EventId": "e/1",
    "a": [2, 1],
    "c": {
        "User": {"id": "u1", "age": 30, "nested": {"deep": True}},
        "_multi": [{"TAction": {"topic": "sports"}}, {"TAction": {"topic": "news"}, "b_": None}],
    },
    "p": [0.8, 0.2],
    "VWState": {"m": "model"},
}


def line(**changes: object) -> bytes:
    return json.dumps(FOREIGN | changes).encode()


def test_a_decision_comes_back_as_it_was() -> None:
    assert read_line(write_line(DECISION).encode()) == replace(DECISION, version=None)
    without_reward = replace(DECISION, reward=None, version=None)
    assert read_line(write_line(without_reward).encode()) == without_reward


def test_what_is_written_means_what_the_format_says() -> None:
    content = json.loads(write_line(DECISION))
    assert (content["_label_cost"], content["_label_probability"]) == (-0.75, 0.7)
    assert (content["_label_Action"], content["_labelIndex"], content["a"]) == (2, 1, [2, 1, 3])
    assert content["p"] == [0.7, 0.2, 0.1]
    with pytest.raises(ValueError, match="no propensity"):
        write_line(replace(DECISION, propensity=None))


@pytest.mark.parametrize("at", [1.8e12, -1e300, 1e300])
def test_a_time_that_no_calendar_has_keeps_nothing_from_being_written(at: float) -> None:
    written = json.loads(write_line(replace(DECISION, at=at)))
    assert written["Timestamp"] == "1970-01-01T00:00:00.000000Z"


def test_a_line_of_another_writer_is_read() -> None:
    decision = read_line(line())
    assert decision.id == "e-1"
    assert decision.group == "e/1"
    assert decision.observation == {"User.id": "u1", "User.age": 30, "User.nested.deep": True}
    assert decision.actions == [{"TAction.topic": "sports"}, {"TAction.topic": "news"}]
    assert (decision.chosen, decision.propensity, decision.reward) == (1, 0.8, 1.0)
    assert decision.propensities == [0.2, 0.8]
    assert decision.at == pytest.approx(1795608000.123456)
    assert read_line(line(Timestamp=None, _labelIndex=None)).at == 0.0


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"c": {}}, "_multi"),
        ({"c": {"_multi": []}}, "1 to 1000 objects"),
        ({"_label_Action": 3}, "from 1 to 2, got 3"),
        ({"_label_Action": True}, "_label_Action"),
        ({"_label_probability": 0}, r"in \(0, 1\]"),
        ({"_label_cost": "much"}, "_label_cost must be a finite number"),
        ({"EventId": ""}, "EventId is missing"),
        ({"_labelIndex": 0}, "_labelIndex, .* must be 1 as _label_Action is 2, got 0"),
        ({"_labelIndex": True}, "_labelIndex"),
        ({"Timestamp": "yesterday"}, "Timestamp must be like 2026-.*, got 'yesterday'"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, object], problem: str) -> None:
    with pytest.raises(DsjsonError, match=problem):
        read_line(line(**changes))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from([*FOREIGN, "_genesis"]), JSON, max_size=6))
def test_any_content_is_a_decision_or_refused(changes: dict[str, object]) -> None:
    content = json.dumps(FOREIGN | changes).encode()
    [(number, decision)] = read_lines([content])
    assert number == 1
    if isinstance(decision, LoggedDecision):
        assert decision.propensity is not None
        assert 0 < decision.propensity <= 1
        assert 0 <= decision.chosen < len(decision.actions)
        assert decision.reward is None or math.isfinite(decision.reward)
        again = read_line(write_line(decision).encode())
        assert (again.actions, again.chosen) == (decision.actions, decision.chosen)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_blank(content: bytes) -> None:
    for _, decision in read_lines([content]):
        assert isinstance(decision, DsjsonError)


def test_imported_decisions_are_taken_in_once(tmp_path: Path) -> None:
    log, replay = tmp_path / "decisions", tmp_path / "replay"
    other = replace(DECISION, id="d-2", group="ticket 8")
    assert append_decisions(log, [DECISION, other, DECISION]) == 2
    assert append_decisions(log, [DECISION]) == 0
    assert list(logged_decisions(log)) == [
        replace(each, version=None, propensities=None) for each in (DECISION, other)
    ]
    assert take_in(log, replay, now=0.0).transitions == 2
    first, _ = ReplayBuffer(replay).read()
    assert (first.group, first.action, first.reward) == ("ticket 7", DECISION.actions[1], 0.75)
    assert (first.propensity, first.next_observation) == (0.7, {"ok": "yes"})


def test_an_import_waits_for_the_predictor(tmp_path: Path) -> None:
    with closing(DecisionLog(tmp_path)) as writer:
        writer.open()
        with pytest.raises(LogBusyError):
            append_decisions(tmp_path, [DECISION])


def test_vowpal_wabbit_reads_what_is_written(tmp_path: Path) -> None:
    pytest.importorskip("vowpalwabbit", reason="the extra 'bench' has it")
    path, chances = tmp_path / "log.dsjson", tmp_path / "chances"
    lines = [
        write_line(replace(DECISION, id=f"d{n}", chosen=n % 3, reward=float(n % 3 == 2)))
        for n in range(300)
    ]
    path.write_text("\n".join(lines) + "\n")
    reading = ["--dsjson", "--cb_explore_adf", "--epsilon", "0.2", "-d", path, "-p", chances]
    done = subprocess.run(
        [sys.executable, "-m", "vowpalwabbit", *map(str, reading)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "number of examples = 300" in done.stdout + done.stderr
    last = chances.read_text().split("\n\n")[-2].split("\n")[-1]
    probabilities = dict(each.split(":") for each in last.split(","))
    assert len(probabilities) == 3
    assert float(probabilities["2"]) > 0.8, "it has learned which action pays"
