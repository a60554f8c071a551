"""``evolve --proposer llm`` against a scripted server: what a malicious model can reach."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agents.se_darwin.command.proposer_options import announce, chosen_proposers
from genesis_fp16.cli.app import app
from infrastructure.agent_contract.command import CommandError, InstalledAgent
from tests.agents.se_darwin.llm.endpoints import answering, serving

pytestmark = pytest.mark.usefixtures("forked")

# No edit writes `next(iter(...))`, which the oldest entry needs.
CACHE = """def put(cache, key, most):
    cache = dict(cache)
    cache[key] = len(cache)
    if len(cache) > most:
        cache.popitem()
    return cache
"""
TESTS = """
from cache import put

def test_put():
    assert put({"a": 0, "b": 1}, "c", 2) == {"b": 1, "c": 2}
    assert put({"x": 5}, "y", 1) == {"y": 1}
    assert put({}, "z", 3) == {"z": 0}
"""
RIGHT = CACHE.replace("cache.popitem()", "del cache[next(iter(cache))]")


def _malicious(canary: Path) -> list[str]:
    head = "def put(cache, key, most):\n    "
    bodies = [
        f"__import__('os').system('touch {canary}')",
        f"open({str(canary)!r}, 'w')",
        "import io\n    raise ValueError('\\x1b[2J\\x1b]0;owned\\x07')",
        "while True: pass",
        "__import__('os').kill(__import__('os').getppid(), 9)",
        "__import__('builtins').AssertionError = SystemExit; raise SystemExit(0)",
        "return [0] * 10**11",
    ]
    return [f"```python\n{head}{body}\n    return '\\x1b[31m' + key\n```" for body in bodies]


def test_a_right_answer_among_malicious_ones_repairs_and_nothing_escapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache.py").write_text(CACHE)
    (tmp_path / "test_cache.py").write_text(TESTS)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "daemon.lock").touch()
    monkeypatch.setenv("GENESIS_HOME", str(tmp_path / "home"))
    canary = tmp_path / "canary"
    with serving() as server:
        server.replies = [answering(*_malicious(canary)), answering(f"```\n{RIGHT}```")]
        options = {"url": server.url, "model": "tiny", "samples": 7, "max_requests": 2}
        setting = "GENESIS_AGENTS__SE_DARWIN__SETTINGS__LLM"
        monkeypatch.setenv(setting, json.dumps(options))
        command = ["evolve", "cache.py::put", "--tests", "test_cache.py", "--timeout", "0.5"]
        command += ["--seconds", "12", "--ranker", "suspicion"]
        shown = CliRunner().invoke(app, [*command, "--show-prompt"])
        assert shown.exit_code == 0, shown.output
        assert "It fails 2 of 3 checks" in shown.stdout
        assert "asking" not in shown.stderr
        assert server.requests == [], "nothing was sent"
        result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "+        del cache[next(iter(cache))]" in result.stdout
    assert "repaired: 3 of 3 checks pass" in result.stdout
    assert "proposed by llm: " in result.stdout
    assert "proposer llm: " in result.stdout
    assert "llm: asking tiny at http://127.0.0.1:" in result.stderr
    assert not canary.exists()
    assert "\x1b" not in result.output
    [audit] = (tmp_path / "home").rglob("llm-requests.jsonl")
    events = [json.loads(line)["event"] for line in audit.read_text().splitlines()]
    assert events[:2] == ["sent", "answered"]
    assert events.count("sent") == len(server.requests)


def _agent(**settings: object) -> InstalledAgent:
    return InstalledAgent(
        name="se-darwin",
        entry_point="x:y",
        folder=Path("/agent"),
        not_writable="",
        settings=settings,  # type: ignore[arg-type]
    )


def test_options_of_the_command_win_over_the_setting() -> None:
    setting = {"url": "http://a/v1", "model": "small", "samples": 2}
    given = ["llm.model=qwen", "llm.samples=8", "llm.temperatures=[0.5]"]
    used = chosen_proposers(_agent(llm=setting), ["llm"], given)["llm"]
    assert used["url"] == "http://a/v1"
    assert (used["model"], used["samples"], used["temperatures"]) == ("qwen", 8, [0.5])
    assert used["audit_file"] == "/agent/llm-requests.jsonl"
    assert chosen_proposers(_agent(llm=setting), ["edits"], []) == {}
    assert chosen_proposers(_agent(), [], []) == {}
    [line] = announce({"llm": used})
    assert "qwen at http://a/v1, at most 6 requests" in line


@pytest.mark.parametrize(
    ("names", "given", "told"),
    [
        ([], ["llm.model=x"], "add --proposer llm"),
        (["llm"], ["model=x"], "must be NAME.KEY=VALUE"),
        (["llm"], [], "url: is missing.*--proposer-option llm.url="),
    ],
)
def test_wrong_options_are_refused(names: list[str], given: list[str], told: str) -> None:
    with pytest.raises(CommandError, match=told) as refused:
        announce(chosen_proposers(_agent(), names, given))
    assert refused.value.exit_code == os.EX_USAGE
