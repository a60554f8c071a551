"""An agent asks, acts and reports to a real server, which fails in all the ways it can."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from genesis_client import Agent, sender

from tests.clients.python.predictor_process import PredictorProcess
from tests.patience import crowding, wait_until

pytestmark = pytest.mark.process
CLIENT = Path(__file__).parents[3] / "clients" / "python"
OBSERVATION = {"topic": "login", "load": 0.5}
ACTIONS = [{"reply": "wait", "value": 0.1}, {"reply": "restart", "value": 0.9}]


def act(agent: Agent, **report: Any) -> str:
    """One cycle; the id of the decision."""
    with agent.choose(OBSERVATION, ACTIONS) as decision:
        decision.report({"solved": True}, **report)
    return decision.id


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(CLIENT)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_actions_are_ranked(agent: Agent) -> None:
    ranking = agent.rank(OBSERVATION, ACTIONS)
    assert (ranking.order, ranking.chances) == ((1, 0), (0.1, 0.9))
    assert (ranking.improvements, ranking.confidence) == ((None, None), (0.5, 0.5))
    assert (ranking.version, ranking.from_model, ranking.reason) == ("7", True, "")


def test_a_decision_and_its_outcome_are_recorded(agent: Agent, predictor: PredictorProcess) -> None:
    with agent.choose(OBSERVATION, ACTIONS, group="ticket-1") as decision:
        assert (decision.action, decision.position, decision.propensity) == (ACTIONS[1], 1, 0.9)
        assert decision.report({"solved": True}, reward=1, terminated=True)
    assert agent.flush()
    asked = predictor.journal("decision")[decision.id]
    assert (asked["group"], asked["observation"]) == ("ticket-1", OBSERVATION)
    assert predictor.journal("outcome")[decision.id] == {
        "final": True,
        "next_observation": {"solved": True},
        "reward": 1,
        "terminated": True,
    }
    assert predictor.journal("choice") == {}
    assert agent.status.sent == 1


def test_an_exception_is_an_outcome(agent: Agent, predictor: PredictorProcess) -> None:
    ids = []

    def fail(error: BaseException, *, report: bool) -> None:
        with agent.choose(OBSERVATION, ACTIONS) as decision:
            ids.append(decision.id)
            if report:
                decision.report({"solved": True})
            raise error

    with pytest.raises(OSError, match="the room is dark"):
        fail(OSError("the room is dark"), report=False)
    with pytest.raises(KeyError):
        fail(KeyError(), report=True)
    with pytest.raises(KeyboardInterrupt):
        fail(KeyboardInterrupt(), report=False)
    with pytest.raises(ValueError, match="no file"):
        fail(ValueError("no file " + os.fsdecode(b"caf\xe9")), report=False)
    assert agent.flush()
    assert predictor.journal("outcome") == {
        ids[0]: {"final": True, "error": "OSError: the room is dark"},
        ids[1]: {"final": True, "next_observation": {"solved": True}},
        ids[3]: {"final": True, "error": "ValueError: no file caf\ufffd"},
    }


def test_an_outcome_may_come_later_from_elsewhere(
    agent: Agent, predictor: PredictorProcess, tmp_path: Path
) -> None:
    decision = agent.choose(OBSERVATION, ACTIONS)
    with Agent("qa", home=predictor.folder, spool=tmp_path / "other") as other:
        assert other.report(decision.id, {"solved": False})
        assert other.flush()
    assert predictor.journal("outcome")[decision.id]["next_observation"] == {"solved": False}


def test_steps_are_recorded_in_batches(agent: Agent, predictor: PredictorProcess) -> None:
    for step in range(2000):
        assert agent.record(
            group="episode",
            observation={"x": np.float32(step), "text": "ä\n\ud800"},
            action={"push": np.array([1.0, np.nan])},
            next_observation={"x": np.int64(step + 1)},
            record_id=f"step-{step}",
        )
    assert agent.flush()
    steps = predictor.journal("transition")
    assert len(steps) == 2000
    assert steps["step-7"] == {
        "id": "step-7",
        "group": "episode",
        "observation": {"x": 7.0, "text": "ä\n\ufffd"},
        "action": {"push": [1.0, None]},
        "reward": 0.0,
        "next_observation": {"x": 8},
        "terminated": False,
    }
    assert predictor.requests["transitions"] < 200


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda agent: agent.rank({"a": {1}}, ACTIONS), TypeError, "observation.a must be text"),
        (lambda agent: agent.rank({}, [{}, {"b": [b""]}]), TypeError, r"actions\[1\].b\[0\] must"),
        (lambda agent: agent.choose({}, []), ValueError, "no action to choose from"),
        (lambda agent: agent.choose([], [{}]), TypeError, "observation must be a mapping"),
        (lambda agent: agent.choose({}, [{}], group=3), TypeError, "group must be text, got int"),
        (lambda agent: agent.report("a/b"), ValueError, "decision_id has up to 64"),
        (lambda agent: agent.report("a", reward=float("nan")), ValueError, "reward must be finite"),
        (
            lambda agent: agent.record(group="", observation={}, action={}),
            ValueError,
            "group must have 1 to 200 characters, got 0",
        ),
        (
            lambda agent: agent.choose({}, [{"push": 1}], group="g" * 201),
            ValueError,
            "group must have 1 to 200 characters, got 201",
        ),
        (
            lambda agent: agent.record(group="g", observation={}, action={}, propensity=1.5),
            ValueError,
            "propensity must be above 0 and at most 1, got 1.5",
        ),
        (
            lambda agent: agent.record(group="g", observation={}, action={}, record_id="ü"),
            ValueError,
            "record_id has up to 64",
        ),
    ],
)
def test_an_error_of_the_caller_is_raised(
    agent: Agent, call: Callable[[Agent], object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        call(agent)
    assert agent.status.waiting_bytes == 0


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("slow 60", "no answer within the deadline"),
        ("drip 0.1", "no answer within the deadline"),
        ("garbage", "not HTTP/1.1"),
        ("half", "ended within an answer"),
        ("version", "speaks protocol '2'"),
        ("status 422", "status 422: as the test wants it"),
        ("status 503", "status 503"),
        ("status 500", "status 500"),
        ("answer []", "not a JSON object"),
        ('answer {"order": [0, 0]}', "has not an order of 2 actions"),
        ('answer {"order": [0, 1], "version": 3}', "has the version 3"),
        ('answer {"order": [0, 1], "chances": [1]}', "has not 2 chances"),
        ('answer {"order": [0, 1], "chances": ["a", 1]}', "chances in the answer are not numbers"),
    ],
)
def test_no_fault_of_the_service_is_raised(
    agent: Agent,
    predictor: PredictorProcess,
    fault: str,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sender, "SEND_SECONDS", 1.0)
    monkeypatch.setattr(sender, "MOST_FAULTS", 10**6)  # a crowded machine may repeat for long
    agent.deadline = 0.3
    predictor.fail(fault)
    began = time.monotonic()
    ranking = agent.rank(OBSERVATION, ACTIONS)
    assert time.monotonic() - began < 0.3 + 0.3 * crowding()
    assert (ranking.order, ranking.from_model) == ((0, 1), False)
    assert reason in ranking.reason
    with agent.choose(OBSERVATION, ACTIONS) as decision:
        assert (decision.action, decision.propensity) == (ACTIONS[0], None)
        decision.report({"solved": True})
    assert not agent.flush(0.1) or fault.startswith(("answer", "status 422"))
    predictor.fail("")
    if not fault.startswith(("answer", "status 422")):
        wait_until(lambda: agent.flush(1.0), "reports to be sent")
        assert predictor.journal("choice")[decision.id]["chosen"] == 0
        assert predictor.journal("outcome")[decision.id]["next_observation"] == {"solved": True}


def test_a_model_that_is_missing_is_told(agent: Agent, predictor: PredictorProcess) -> None:
    predictor.fail(
        'answer {"order": [0, 1], "version": null, "chances": [null, null], "improvements": '
        '[null, null], "confidence": [0, 0], "warnings": ["no model is published yet"]}'
    )
    ranking = agent.rank(OBSERVATION, ACTIONS)
    assert (ranking.from_model, ranking.reason) == (False, "no model is published yet")


def test_a_restart_between_two_calls_costs_one_retry(
    agent: Agent, predictor: PredictorProcess
) -> None:
    assert agent.rank(OBSERVATION, ACTIONS).from_model
    predictor.kill()
    predictor.start()
    assert agent.rank(OBSERVATION, ACTIONS).from_model
    assert agent.status.problem == ""


def test_a_predictor_killed_within_a_request(agent: Agent, predictor: PredictorProcess) -> None:
    predictor.fail("die")
    decision_id = act(agent)
    predictor.wait()
    predictor.fail("")
    predictor.start()
    wait_until(lambda: agent.flush(1.0), "reports to be sent")
    assert [*predictor.journal("choice")] == [*predictor.journal("outcome")] == [decision_id]
    wait_until(lambda: agent.rank(OBSERVATION, ACTIONS).from_model, "the model to be asked again")


def test_without_a_daemon_a_call_costs_little_and_is_kept(
    agent: Agent, predictor: PredictorProcess
) -> None:
    predictor.kill()
    seconds, ids = [], []
    for _ in range(300):
        began = time.perf_counter()
        ids.append(act(agent))
        seconds.append(time.perf_counter() - began)
    assert statistics.median(seconds) < 0.001 * crowding()
    assert "Connection refused" in agent.status.problem
    predictor.start()
    wait_until(lambda: agent.flush(5.0), "reports to be sent")
    assert [*predictor.journal("choice")] == [*predictor.journal("outcome")] == ids
    assert agent.status == agent.status._replace(sent=600, refused=0, dropped=0, damaged=0)


def test_a_predictor_that_hangs_costs_three_deadlines(
    agent: Agent, predictor: PredictorProcess
) -> None:
    agent.deadline = 0.05
    predictor.send(signal.SIGSTOP)
    began = time.monotonic()
    for _ in range(500):
        assert not agent.rank(OBSERVATION, ACTIONS).from_model
    assert time.monotonic() - began < (3 * 0.05 + 0.5) * crowding()
    predictor.send(signal.SIGCONT)
    agent.deadline = 5.0
    wait_until(lambda: agent.rank(OBSERVATION, ACTIONS).from_model, "the model to be asked again")


def test_reports_that_are_wrong_are_refused_alone(
    agent: Agent, predictor: PredictorProcess
) -> None:
    for step in range(30):
        field = "wrong" if step in {4, 20} else "x"
        agent.record(group="g", observation={field: 1}, action={}, record_id=f"step-{step}")
    agent.report("never-made", {"solved": True})
    assert agent.flush()
    assert len(predictor.journal("transition")) == 28
    assert (agent.status.sent, agent.status.refused) == (28, 3)
    assert agent.status.refusal == "status 404: no decision has this id"


def test_reports_of_an_agent_that_is_not_known_yet_wait(
    predictor: PredictorProcess, tmp_path: Path
) -> None:
    with Agent("unknown", home=predictor.folder, spool=tmp_path) as agent:
        agent.record(group="g", observation={}, action={})
        assert not agent.flush()
        assert agent.status.problem == "status 404: no agent has this name"
        assert (agent.status.refused, agent.status.waiting_bytes > 0) == (0, True)


def test_threads_share_an_agent(agent: Agent, predictor: PredictorProcess) -> None:
    ids: list[str] = []
    threads = [
        threading.Thread(target=lambda: ids.extend(act(agent) for _ in range(20))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_until(lambda: agent.flush(5.0), "reports to be sent")
    assert {*predictor.journal("outcome")} == {*ids}
    assert len(ids) == 160


def test_a_forked_child_has_a_connection_and_a_file_of_its_own(
    predictor: PredictorProcess, tmp_path: Path
) -> None:
    script = """
import os, sys
from genesis_client import Agent
agent = Agent("qa", home=sys.argv[1], spool=sys.argv[2], deadline=5.0)
def act(number):
    with agent.choose({}, [{"value": 0.5}]) as decision:
        decision.report(reward=number)
    assert decision.ranking.from_model, decision.ranking.reason
act(0)
children = []
for number in range(1, 5):
    children.append(os.fork())
    if not children[-1]:
        act(number)
        os._exit(not agent.flush())
act(5)
assert agent.flush()
assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
"""
    done = run(script, predictor.folder, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    rewards = [outcome["reward"] for outcome in predictor.journal("outcome").values()]
    assert sorted(rewards) == [0, 1, 2, 3, 4, 5]


def test_what_a_killed_process_leaves_is_sent_once_by_another(
    predictor: PredictorProcess, tmp_path: Path
) -> None:
    script = """
import os, signal, sys
from genesis_client import Agent
agent = Agent("qa", home=sys.argv[1], spool=sys.argv[2])
for number in range(100):
    agent.record(group="g", observation={}, action={}, record_id=f"{sys.argv[3]}-{number}")
os.kill(os.getpid(), signal.SIGKILL)
"""
    predictor.kill()
    for name in ("first", "second"):
        assert run(script, predictor.folder, tmp_path, name).returncode == -signal.SIGKILL
    predictor.start()
    with (
        Agent("qa", home=predictor.folder, spool=tmp_path) as one,
        Agent("qa", home=predictor.folder, spool=tmp_path) as two,
    ):
        one.record(group="g", observation={}, action={})
        two.record(group="g", observation={}, action={})
        wait_until(lambda: len(predictor.journal("transition")) == 202, "all reports")
        assert one.flush()
        assert two.flush()
        assert one.status.sent + two.status.sent == 202
    assert [path.stat().st_size for path in tmp_path.glob("*/*.spool")] in ([0, 0], [0])


def test_an_outcome_waits_for_the_choice_that_another_process_has_kept(
    predictor: PredictorProcess, tmp_path: Path
) -> None:
    script = """
import os, signal, sys
from genesis_client import Agent
agent = Agent("qa", home=sys.argv[1], spool=sys.argv[2])
print(agent.choose({}, [{}]).id, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    predictor.kill()
    with Agent("qa", home=predictor.folder, spool=tmp_path) as agent:
        agent.record(group="g", observation={}, action={})  # takes the first file
        name = run(script, predictor.folder, tmp_path).stdout.strip()
        agent.report(name, {"solved": True})
        predictor.start()
        wait_until(lambda: name in predictor.journal("outcome"), "the outcome")
        assert agent.status.refused == 0


def test_a_program_that_ends_at_once_has_reported(
    predictor: PredictorProcess, tmp_path: Path
) -> None:
    script = """
import sys
from genesis_client import Agent
Agent("qa", home=sys.argv[1], spool=sys.argv[2]).record(group="g", observation={}, action={})
"""
    done = run(script, predictor.folder, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(predictor.journal("transition")) == 1


def test_a_program_ends_at_once_without_a_daemon(tmp_path: Path) -> None:
    script = """
import sys, time
from genesis_client import Agent
agent = Agent("qa", home=sys.argv[1], spool=sys.argv[1])
agent.record(group="g", observation={}, action={})
agent.rank({}, [{}])
"""
    began = time.monotonic()
    done = run(script, tmp_path)
    assert time.monotonic() - began < 2 * crowding()
    assert done.returncode == 0
    assert done.stderr.startswith("agent qa: actions are taken in the agent's own order: ")
    assert [path.stat().st_size > 0 for path in tmp_path.glob("*/*.spool")] == [True]


def test_an_agent_that_is_forgotten_lets_its_thread_end(
    predictor: PredictorProcess, tmp_path: Path
) -> None:
    agent = Agent("qa", home=predictor.folder, spool=tmp_path)
    agent.record(group="g", observation={}, action={})
    threads = [each for each in threading.enumerate() if each.name == "genesis-client-qa"]
    assert threads
    del agent
    gc.collect()
    wait_until(lambda: not any(thread.is_alive() for thread in threads), "the thread's end")
    assert len(predictor.journal("transition")) == 1
    assert not [each for each in gc.get_objects() if isinstance(each, sender.Sender)]


def test_a_closed_agent_opens_again(agent: Agent, predictor: PredictorProcess) -> None:
    act(agent)
    agent.close(5.0)
    assert len(predictor.journal("outcome")) == 1
    act(agent)
    assert agent.flush()
    assert len(predictor.journal("outcome")) == 2


def test_an_address_with_a_token(tmp_path: Path) -> None:
    predictor = PredictorProcess(tmp_path, tcp=True)
    predictor.start()
    try:
        with Agent("qa", url=predictor.url, token="t" * 20, spool=tmp_path, deadline=5.0) as agent:
            assert agent.rank(OBSERVATION, ACTIONS).from_model
            act(agent)
            assert agent.flush()
        assert len(predictor.journal("outcome")) == 1
    finally:
        predictor.kill()


def test_an_asynchronous_agent(agent: Agent, predictor: PredictorProcess) -> None:
    async def cycle(fails: bool) -> str:
        async with agent.achoose(OBSERVATION, ACTIONS) as decision:
            assert decision.action == ACTIONS[1]
            if fails:
                raise OSError("as the test wants it")
            decision.report({"solved": True})
        return decision.id

    async def main() -> None:
        assert (await agent.arank(OBSERVATION, ACTIONS)).order == (1, 0)
        results = await asyncio.gather(
            *(cycle(number == 3) for number in range(20)), return_exceptions=True
        )
        assert [type(result) for result in results].count(OSError) == 1

    asyncio.run(main())
    assert agent.flush()
    outcomes = predictor.journal("outcome").values()
    assert len(outcomes) == 20
    assert sum("error" in outcome for outcome in outcomes) == 1


def test_asynchronous_calls_keep_the_deadline_together(
    agent: Agent, predictor: PredictorProcess
) -> None:
    """More of them than there are threads."""
    predictor.send(signal.SIGSTOP)

    async def main() -> float:
        began = time.monotonic()
        rankings = await asyncio.gather(
            *(agent.arank(OBSERVATION, ACTIONS, deadline=0.2) for _ in range(50))
        )
        assert not any(ranking.from_model for ranking in rankings)
        return time.monotonic() - began

    try:
        assert asyncio.run(main()) < 0.2 + 0.3 * crowding()
    finally:
        predictor.send(signal.SIGCONT)
