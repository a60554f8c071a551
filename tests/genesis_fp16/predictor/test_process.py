"""A predictor's life: kills, switches of versions under load, orders, reports, full disks."""

import os
import resource
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest

from genesis_fp16.domain.predictor import KnownAgent, PredictorOrder
from genesis_fp16.predictor.models import NEW_SECONDS
from genesis_fp16.predictor.server import _AgentConnection
from infrastructure.decisions import read_records, take_in
from infrastructure.decisions.removal import remove_group
from infrastructure.trajectories import ReplayBuffer
from infrastructure.world_model import WorldModel
from tests.genesis_fp16.predictor.conftest import (
    QUESTION,
    TOOLS,
    Client,
    Predictor,
    Start,
    publish,
    roll_back,
    starting,
)
from tests.patience import wait_until

pytestmark = pytest.mark.process
THREADS, KILLS = 4, 3


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path) as start:
        yield start


def _report_until(predictor: Predictor, number: int, ended: threading.Event, known: set) -> None:
    """Decide and report again and again; each request is repeated until it is answered."""
    count, client = 0, predictor.client()
    while not ended.is_set():
        count += 1
        name = f"d-{number}-{count}"
        for path, body in (
            ("decisions", {**QUESTION, "id": name}),
            (f"decisions/{name}/outcome", {"reward": 1.0, "next_observation": {"ok": "yes"}}),
        ):
            while True:
                try:
                    status, answer = client.agent(path, body)
                except (OSError, HTTPException):  # it was killed: the next one answers
                    client = predictor.client()
                else:
                    assert status == 200, answer
                    break
        known.add(name)


def test_kills_lose_nothing_that_was_acknowledged_and_double_nothing(
    start: Start, tmp_path: Path
) -> None:
    predictor, known, ended = start(), set[str](), threading.Event()
    threads = [
        threading.Thread(target=_report_until, args=(predictor, number, ended, known))
        for number in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for _ in range(KILLS):
        before = len(known)
        wait_until(lambda before=before: len(known) > before + 50, "reports between two kills")
        predictor.kill()
        predictor.start()
    ended.set()
    for thread in threads:
        thread.join()
    predictor.end()
    log = tmp_path / "agents" / "qa" / "decisions"
    found = Counter((found["kind"], found["id"]) for _, _, found in read_records(log))
    assert {name for kind, name in found if kind == "outcome"} == known
    assert set(found.values()) == {1}
    assert take_in(log, tmp_path / "replay", now=time.time()).transitions == len(known)
    taken = [t.info["decision"] for t in ReplayBuffer(tmp_path / "replay").read()]
    assert sorted(taken) == sorted(known)


def test_versions_are_switched_under_load_without_a_failed_answer(
    start: Start, tmp_path: Path, models: dict[str, Path]
) -> None:
    agent = tmp_path / "agents" / "qa"
    publish(agent, models["a"], "run-a")
    expected = {
        f"run-{letter}": WorldModel.load(folder).success_chances(QUESTION["observation"], TOOLS)
        for letter, folder in models.items()
    }
    predictor, ended = start(), threading.Event()
    answers: list[tuple[float, float, int, dict]] = []

    def ask() -> None:
        client = predictor.client()
        while not ended.is_set():
            began = time.time()
            status, answer = client.agent("rank", QUESTION)
            answers.append((began, time.time(), status, answer))

    def seen(version: str) -> bool:
        return bool(answers) and answers[-1][3]["version"] == version

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    wait_until(lambda: seen("run-a"), "the first answers")
    switched = []
    publish(agent, models["b"], "run-b")
    switched.append((time.time(), "run-a"))
    wait_until(lambda: seen("run-b"), "the new version")
    roll_back(agent, "run-a")
    switched.append((time.time(), "run-b"))
    wait_until(lambda: seen("run-a"), "the version before")
    ended.set()
    for thread in threads:
        thread.join()
    assert {status for _, _, status, _ in answers} == {200}
    versions = [answer["version"] for *_, answer in answers]
    assert set(versions) == {"run-a", "run-b"}, "each answer names the version that was published"
    for *_, answer in answers:
        assert answer["chances"] == pytest.approx(expected[answer["version"]])
    until = {old: at for at, old in switched}
    old = [began for began, _, _, answer in answers if answer["version"] == "run-b"]
    assert max(old) < until["run-b"] + 1.0 + NEW_SECONDS


def test_an_answer_is_sent_whole_and_pipelined_questions_are_all_answered(start: Start) -> None:
    client = start().client()
    client.connect()
    asked = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for _ in range(5):
        client.sock.sendall(asked)
        head, end, body = client.sock.recv(1 << 16).partition(b"\r\n\r\n")
        assert (head[:15], end, body) == (b"HTTP/1.1 200 OK", b"\r\n\r\n", b"ok\n")
    client.sock.sendall(2 * asked + b"GET /nothing HTTP/9\r\n\r\n")
    received = b""
    while more := client.sock.recv(1 << 16):  # until it closes the connection
        received += more
    assert received.count(b"\r\n\r\nok\n") == 2
    assert b"HTTP/1.1 400 Bad Request" in received


def test_clients_that_never_send_their_bodies_keep_none_out(start: Start) -> None:
    predictor, slow = start(), list[Client]()
    for _ in range(_AgentConnection.most_connections + 20):
        client = predictor.client()
        client.timeout = None  # connect as soon as there is room in the backlog
        client.connect()
        client.sock.sendall(b"POST /api/agents/qa/rank HTTP/1.1\r\nHost: localhost\r\n")
        client.sock.sendall(b"Content-Length: 9\r\n\r\n{")
        slow.append(client)
    for _ in range(5):
        assert predictor.client().agent("rank", QUESTION)[0] == 200
    for client in slow:
        client.close()


def test_a_large_text_delays_no_other_answer(
    start: Start, tmp_path: Path, models: dict[str, Path]
) -> None:
    predictor, answers = start(), list[int]()
    for agent in ("qa", "other"):
        publish(tmp_path / "agents" / agent, models["a"], "1")
        predictor.client().agent("rank", QUESTION, agent)
    words = " ".join(f"w{number:x}" for number in range(60_000))
    large = {**QUESTION, "observation": {"load": 0.5, "note": words}}

    def ask() -> None:
        answers.append(predictor.client().agent("rank", large)[0])

    asking, client, others = threading.Thread(target=ask), predictor.client(), 0
    asking.start()
    while asking.is_alive():
        assert client.agent("rank", QUESTION, "other")[0] == 200
        others += 1
    assert answers == [200]
    assert others > 5, "one, if it waits for the large one"


def test_orders_change_exploration_and_reports_count_what_happened(start: Start) -> None:
    predictor = start(
        agents={"qa": {"explore": "none"}, "fresh": {"explore": "epsilon 0.9"}}, seed=3
    )
    client = predictor.client()
    chosen = {client.agent("decisions", QUESTION, "fresh")[1]["chosen"] for _ in range(30)}
    assert chosen == {0, 1, 2}
    decision = client.agent("decisions", QUESTION)[1]
    assert decision["propensities"] == [1.0, 0.0, 0.0]
    client.agent(f"decisions/{decision['id']}/outcome", {"reward": 1.0})
    client.agent("rank", {"observation": {}})
    predictor.tell(
        PredictorOrder(
            agents={
                "qa": KnownAgent(explore="softmax 0.1 floor 0.2"),
                "fresh": KnownAgent(explore="wrong"),
            }
        )
    )
    floor = pytest.approx([0.6, 0.2, 0.2])
    wait_until(lambda: client.agent("decisions", QUESTION)[1]["propensities"] == floor)
    report = predictor.report()
    while "exploration_refused" not in [notice.event for notice in report.notices]:
        assert not report.agents or report.agents.keys() <= {"qa", "fresh"}
        if "qa" in report.agents:
            first = report.agents["qa"]
            assert first.outcomes.get("recorded", 1) == 1
        report = predictor.report()
    assert predictor.end() == 0


def test_a_changed_file_of_tokens_leaves_the_reports_readable(start: Start, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"ann {'t' * 16}\n")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        predictor = start(token_file=tokens, listeners=[listener.fileno()])
        client = HTTPConnection(*listener.getsockname())
        for token, name in (("t", ""), ("s", "bob")):
            if name:
                tokens.write_text(f"{name} {token * 16}\n")
            bearer = {"Authorization": f"Bearer {token * 16}"}
            client.request("POST", "/api/agents/qa/rank", headers=bearer)
            answer = client.getresponse()
            answer.read()
            assert answer.status == 422
        client.close()
        while not (notices := predictor.report().notices):
            pass
    assert [(notice.event, notice.fields) for notice in notices] == [
        ("api_tokens_read", {"names": "bob"})
    ]


def test_a_model_dated_into_the_future_is_not_new_for_ever(
    start: Start, models: dict[str, Path]
) -> None:
    predictor = start()
    qa = predictor.home / "agents" / "qa"
    WorldModel.load(models["a"]).save(qa / "published")
    client = predictor.client()
    first = client.agent("rank", QUESTION)[1]["version"]
    WorldModel.load(models["b"]).save(qa / "published")
    tomorrow = time.time() + 86_400
    os.utime(qa / "published" / "model.json", (tomorrow, tomorrow))  # or the clock was set back
    assert client.agent("rank", QUESTION)[1]["version"] not in (first, None)


def test_a_full_disk_refuses_what_it_cannot_keep_and_goes_on(start: Start, tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk."""
    predictor = start()
    client, pid = predictor.client(), predictor.process.pid
    assert client.agent("decisions", {**QUESTION, "id": "d1"})[0] == 200
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    status, problem = client.agent("decisions", {**QUESTION, "id": "d2"})
    assert status == 503
    assert "acknowledged is kept" in problem["detail"]
    assert client.agent("rank", QUESTION)[0] == 200
    resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
    assert client.agent("decisions", {**QUESTION, "id": "d2"})[0] == 200
    predictor.kill()
    log = tmp_path / "agents" / "qa" / "decisions"
    assert [found["id"] for _, _, found in read_records(log)] == ["d1", "d2"]


def test_a_late_outcome_is_said_to_be_late(start: Start) -> None:
    client = start(outcome_seconds=1e-6).client()
    name = client.agent("decisions", QUESTION)[1]["id"]
    late = {"id": name, "state": "late", "warnings": []}
    assert client.agent(f"decisions/{name}/outcome", {"reward": 1.0}) == (200, late)
    assert client.agent(f"decisions/{name}/outcome", {"reward": 1.0})[1]["state"] == "repeated"


def test_a_partial_outcome_counts_and_a_report_after_its_deadline_is_refused(start: Start) -> None:
    predictor = start(outcome_seconds=2.0)
    client, agent = predictor.client(), predictor.home / "agents" / "qa"
    deadline = client.agent("decisions", {**QUESTION, "id": "d1"})[1]["deadline"]
    partial = {"next_observation": {"ok": "yes"}, "final": False}
    assert client.agent("decisions/d1/outcome", partial)[1]["state"] == "partial"
    while time.time() <= deadline:
        time.sleep(0.05)
    status, problem = client.agent("decisions/d1/outcome", {"reward": 1.0})
    assert (status, "too late" in problem["detail"]) == (409, True)
    assert client.agent("decisions/d1/outcome", partial)[1]["state"] == "repeated"
    assert take_in(agent / "decisions", agent / "replay", now=deadline + 60.0).transitions == 1
    (row,) = ReplayBuffer(agent / "replay").read()
    assert (row.next_observation, row.propensity) == ({"ok": "yes"}, 1.0)


def test_models_least_recently_used_leave(
    start: Start, tmp_path: Path, models: dict[str, Path]
) -> None:
    for number in range(4):
        publish(tmp_path / "agents" / f"a{number}", models["a"], f"run-{number}")
    client = start(most_models=2).client()
    for number in (0, 1, 2, 3, 0):
        assert client.agent("rank", QUESTION, f"a{number}")[1]["version"] == f"run-{number}"
    listed = client.ask("/api/models")[1]["models"]
    assert [model["agent"] for model in listed if model["loaded"]] == ["a0", "a3"]


def test_a_removed_decision_is_forgotten_while_it_serves(start: Start) -> None:
    predictor = start()
    client, agent = predictor.client(), predictor.home / "agents" / "qa"
    for name, group in (("d1", "customer-7"), ("d2", "customer-8"), ("d3", "customer-7")):
        client.agent("decisions", {**QUESTION, "id": name, "group": group})
    assert remove_group(agent / "decisions", agent / "replay", "customer-7").records == 2
    outcome = {"reward": 1.0, "next_observation": {"ok": "yes"}}
    assert client.agent("decisions/d1/outcome", outcome)[0] == 404
    assert client.agent("decisions/d2/outcome", outcome)[1]["state"] == "recorded"
    other = {**QUESTION, "id": "d3", "group": "customer-9"}
    assert client.agent("decisions", other)[0] == 200, "its id is free again"
    assert client.agent("decisions/d3/outcome", outcome)[1]["state"] == "recorded"
    predictor.kill()
    predictor.start()
    assert predictor.client().agent("decisions/d1/outcome", outcome)[0] == 404
    assert predictor.client().agent("decisions/d3/outcome", outcome)[1]["state"] == "repeated"
    assert take_in(agent / "decisions", agent / "replay", now=0.0).transitions == 2
