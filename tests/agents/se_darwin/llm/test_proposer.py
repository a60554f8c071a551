"""The proposer against a real HTTP server that behaves in every way a server may."""

from __future__ import annotations

import gzip
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from agents.se_darwin.llm.endpoint import MOST_BYTES
from agents.se_darwin.llm.proposer import LLMProposer
from infrastructure.agent_contract.proposer import (
    FailingCheck,
    ProposalRequest,
    SuspiciousLine,
    TriedProgram,
)
from tests.agents.se_darwin.llm.endpoints import (
    Server,
    answering,
    chunk,
    dribbling,
    failing,
    raw,
    serving,
    silent,
)

KEY = "sk-test-0123456789abcdef0123"
PROGRAM = (
    f'TOKEN = "{KEY}"\npassword = "hunter2hunter2"\n\n\ndef solve(x):\n    return post(x, TOKEN)\n'
)
CODE = "def solve(x):\n    return x + 1\n"
FENCED = f"Here it is:\n```python\n{CODE}```\nGood luck!"
REQUEST = ProposalRequest(
    program=PROGRAM,
    function="solve",
    description="",
    checks=3,
    failing=(FailingCheck(name="solve(1)", expected="2", got="1"),),
    suspicious=(SuspiciousLine(line=6, suspicion=0.7),),
    best=None,
    tried=(),
    round=0,
    candidates=24,
    seconds=inf,
    is_cancelled=lambda: False,
)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as script:
        yield script


@pytest.fixture
def make(server: Server) -> Callable[..., LLMProposer]:
    def make(**options: Any) -> LLMProposer:
        return LLMProposer({"url": server.url, "model": "tiny", "samples": 2} | options)

    return make


def _codes(proposer: LLMProposer, request: ProposalRequest = REQUEST) -> list[str]:
    return [candidate.code for candidate in proposer.propose(request)]


def test_answers_arrive_with_rising_temperature_and_are_counted(
    server: Server, make: Callable[..., LLMProposer], tmp_path: Path
) -> None:
    server.replies = [answering(FENCED, "I am sorry, I cannot help."), answering("", FENCED)]
    audit = tmp_path / "home" / "audit.jsonl"
    proposer = make(input_price=1.0, output_price=4.0, max_cost=1.0, audit_file=str(audit))
    assert _codes(proposer) == [CODE]
    tried = TriedProgram(function=CODE, passed=1, failing=REQUEST.failing)
    assert _codes(proposer, replace(REQUEST, tried=(tried,))) == [CODE]
    first, second = server.requests
    assert (first["n"], first["temperature"], second["temperature"]) == (2, 0.2, 0.6)
    assert "solve(1): got 1, expected 2" in first["messages"][1]["content"]
    assert "Your former answers were wrong" not in first["messages"][1]["content"]
    assert "It passes 1 of 3 checks and fails" in second["messages"][1]["content"]
    summary = proposer.summary()
    assert "2 requests to tiny at 127.0.0.1" in summary
    assert "200 + 100 tokens, a cost of 0.0006, 4 answers" in summary
    assert "1 empty, 1 without the function" in summary
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [line["event"] for line in lines] == ["sent", "answered"] * 2
    assert lines[1]["tokens"] == [100, 50]
    assert lines[0]["prompt_sha256"] == lines[1]["prompt_sha256"]


def test_secrets_leave_the_machine_as_marks_and_come_back(
    server: Server, make: Callable[..., LLMProposer], tmp_path: Path
) -> None:
    def echo(handler: Any, body: dict[str, Any]) -> None:
        prompt = body["messages"][1]["content"]
        mark = prompt.split('TOKEN = "')[1].split('"')[0]
        answering(f'```\ndef solve(x):\n    return post(x, "{mark}")\n```')(handler, body)

    server.replies = [echo]
    (tmp_path / "key").write_text(f"{KEY}-of-the-endpoint\n")
    proposer = make(samples=1, key_file=str(tmp_path / "key"))
    [code] = _codes(proposer)
    assert KEY in code, "the candidate that runs here has the real one"
    sent = json.dumps(server.requests)
    assert KEY not in sent
    assert "hunter2" not in sent
    assert server.headers[0]["authorization"] == f"Bearer {KEY}-of-the-endpoint"
    preview = proposer.preview(REQUEST)
    assert server.requests[0]["messages"][1]["content"] in preview
    assert KEY not in preview + proposer.summary()
    assert "2 strings masked" in preview
    assert len(server.requests) == 1, "a preview sends nothing"


def test_a_server_that_asks_to_wait_is_asked_again(
    server: Server, make: Callable[..., LLMProposer]
) -> None:
    server.replies = [
        failing(429, "slow down", Retry_After="0.2"),
        failing(500, "oops \x1b[2J", Retry_After="0"),
        answering(FENCED),
    ]
    proposer = make()
    began = time.monotonic()
    assert _codes(proposer) == [CODE]
    assert time.monotonic() - began >= 0.2
    summary = proposer.summary()
    assert "1 failed (HTTP 429: " in summary
    assert "\x1b" not in summary


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (failing(401, f"key {KEY} is wrong"), "HTTP 401"),
        (failing(404, "no model tiny"), "HTTP 404: .*no model tiny"),
        (failing(429, "tomorrow", Retry_After="86400"), "the server asks to wait 86400 s"),
        (failing(307, "moved", Location="http://example.invalid/"), "HTTP 307"),
        (
            raw(b"<html><script>", Content_Type="text/html; charset=utf-8"),
            "answers with a web page",
        ),
    ],
)
def test_an_error_that_stays_ends_the_proposer(
    reply: Any, told: str, server: Server, make: Callable[..., LLMProposer], tmp_path: Path
) -> None:
    server.replies = [reply]
    (tmp_path / "key").write_text(KEY)
    proposer = make(key_file=str(tmp_path / "key"))
    assert _codes(proposer) == []
    assert len(server.requests) == 1
    assert re.search(told, proposer.summary())
    assert KEY not in proposer.summary()


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (answering(FENCED[:40], finish="length"), "cut off"),
        (answering(FENCED, finish=None), "cut off"),
        (raw(b"data: {not json\n\n", Content_Type="text/event-stream"), "failed"),
        (
            raw(b"\x00\xff" * 1000, Content_Type="text/event-stream"),
            "not that of an OpenAI-compatible endpoint",
        ),
        (raw(b"data: [1, 2]\n\n", Content_Type="text/event-stream"), "0 answers"),
        (raw(b'data: {"choices": "none"}\n\n', Content_Type="text/event-stream"), "failed"),
        (raw(gzip.compress(b"0" * 1_000_000), Content_Encoding="gzip"), "compressed"),
        (dribbling(b"x" * 200_000, 0.0), f"longer than {MOST_BYTES} bytes"),
        (dribbling(b": still here\n\n", 0.01), "took more than 0 s"),
        (dribbling(f"data: {json.dumps(chunk('x' * 9999))}\n\n".encode(), 0.0), "characters"),
        (silent, "[Tt]ime"),
    ],
    ids=range(11),
)
def test_no_answer_is_made_of_a_response_that_is_none(
    reply: Any, told: str, server: Server, make: Callable[..., LLMProposer]
) -> None:
    server.replies = [reply]
    proposer = make(max_requests=1, request_seconds=0.4 if told[0] in "t[" else 20.0)
    assert _codes(proposer) == []
    assert re.search(told, proposer.summary()), proposer.summary()


def test_another_model_that_answers_is_named(
    server: Server, make: Callable[..., LLMProposer]
) -> None:
    server.replies = [answering(FENCED, model="other\x1b]0;owned\x07")]
    proposer = make()
    assert _codes(proposer) == [CODE]
    assert proposer.summary().endswith(", answered by other, 2 strings masked")


def test_a_server_without_n_and_usage_is_asked_for_one_answer(
    server: Server, make: Callable[..., LLMProposer]
) -> None:
    server.replies = [failing(400, "unknown field n"), answering(FENCED)]
    assert _codes(make()) == [CODE]
    assert "n" not in server.requests[1]
    assert "stream_options" not in server.requests[1]


def test_a_cancelled_stream_is_closed(server: Server, make: Callable[..., LLMProposer]) -> None:
    event = f"data: {json.dumps(chunk('x'))}\n\n".encode()
    server.replies = [dribbling(event, 0.01), answering(FENCED)]
    proposer = make()
    began = time.monotonic()

    def is_cancelled() -> bool:
        return bool(server.requests) and time.monotonic() - began > 0.3

    assert _codes(proposer, replace(REQUEST, is_cancelled=is_cancelled)) == []
    assert _codes(proposer) == [CODE], "for another function it is asked again"
    while not server.cancelled:
        assert time.monotonic() - began < 60, "the server goes on"
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("options", "requests", "told"),
    [
        ({"max_requests": 2}, 2, "all requests are made"),
        ({"max_tokens": 1200, "max_answer_tokens": 400, "samples": 1}, 5, "the tokens are spent"),
        ({"max_seconds": 0.001}, 0, "the time is up"),
        (
            {
                "input_price": 1000.0,
                "output_price": 1000.0,
                "max_cost": 1.0,
                "max_answer_tokens": 300,
            },
            3,
            "the money is spent",
        ),
    ],
)
def test_no_request_is_made_beyond_the_budget(
    options: dict[str, Any],
    requests: int,
    told: str,
    server: Server,
    make: Callable[..., LLMProposer],
) -> None:
    texts = [FENCED.replace("x", f"x{number}") for number in range(50)]
    server.replies = [answering(text, text) for text in texts]
    proposer = make(**options)
    while _codes(proposer):
        assert len(server.requests) < 50
    assert told in proposer.summary()
    assert abs(len(server.requests) - requests) <= 1
    assert len(server.requests) < 7


def test_a_model_that_repeats_itself_is_not_asked_again(
    server: Server, make: Callable[..., LLMProposer]
) -> None:
    server.replies = [answering(FENCED, FENCED)]
    proposer = make(samples=2)
    while _codes(proposer):
        assert len(server.requests) < 50
    assert len(server.requests) == 3
    assert "6 answers, the model repeats its answers" in proposer.summary()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"url": "ftp://host"}, "base URL"),
        ({"url": "http://user:key@host/v1"}, "must not contain a key"),
        ({"max_cost": 1.0}, "needs input_price"),
        ({"key_file": "/nonexistent/key"}, "cannot be read"),
        ({"key_variable": "NO_SUCH_KEY_38"}, "is not set"),
        ({"temperature": 1}, "is not an option; options are url, model"),
        ({"samples": 0}, "samples"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        LLMProposer({"url": "http://127.0.0.1:9/v1", "model": "tiny"} | options)


def test_a_key_comes_from_the_environment(
    server: Server, make: Callable[..., LLMProposer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY_38", KEY)
    server.replies = [answering(FENCED)]
    assert _codes(make(key_variable="MY_KEY_38")) == [CODE]
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"


def test_without_an_audit_line_nothing_is_sent(
    server: Server, make: Callable[..., LLMProposer]
) -> None:
    server.replies = [answering(FENCED)]
    with pytest.raises(OSError, match="audit"):
        _codes(make(audit_file="/proc/audit/audit.jsonl"))
    assert server.requests == []
