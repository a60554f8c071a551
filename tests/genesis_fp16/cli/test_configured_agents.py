"""``genesis-fp16 agents add`` and ``enable``, as an operator calls them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from genesis_fp16.cli.app import app
from genesis_fp16.cli.configured_agents import GENESIS_AGENTS
from genesis_fp16.plugins.loading import load_agent
from infrastructure.trajectories.record_source import RecordSource, read_definition

WRITTEN_BY = {  # agents that store trajectories, and the id under which each does
    "builder": "builder_agent_{business}",  # its enhanced class
    "deploy": "deploy_agent_{business}",
    "security": "security_{business}",
    "spec": "spec_{business}",
}


def trajectory_of(agent_id: str) -> dict[str, object]:
    """A trajectory in the form of Genesis' replay buffer."""
    step = {"tool_name": "plan", "tool_args": {"size": 3}, "tool_result": "ok"}
    return {
        "trajectory_id": f"{agent_id}-1",
        "agent_id": agent_id,
        "task_description": f"a task of {agent_id}",
        "initial_state": {"business_id": "acme"},
        "steps": [{**step, "timestamp": "2025-11-14T00:00:00", "agent_reasoning": "usual"}],
        "final_outcome": "success",
        "reward": 0.9,
        "metadata": {},
        "created_at": "2025-11-14T00:00:00",
        "duration_seconds": 1.0,
        "failure_rationale": None,
    }


@pytest.fixture
def call(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("GENESIS_HOME", str(folder / "home"))
    return lambda *arguments: CliRunner().invoke(app, ["agents", *arguments])


@pytest.fixture
def sample(folder: Path) -> Path:
    path = folder / "records" / "a.jsonl"
    path.parent.mkdir()
    rows = [
        {"task": f"t{number // 4}", "size": number, "solved": number % 3 == 0}
        for number in range(40)
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_add_writes_a_definition_that_loads(
    call: Callable[..., Result], sample: Path, folder: Path
) -> None:
    path = folder / "home" / "agents.d" / "fixer.toml"
    shown = call("add", "fixer", "--from", str(sample), "--dry-run")
    assert (shown.exit_code, path.exists()) == (0, False)
    answer = call("add", "fixer", "--from", str(sample), "--schedule", "every 2h")
    assert answer.exit_code == 0, answer.output
    assert f"written to {path}" in answer.stdout
    assert "not enough" in answer.stdout
    assert path.stat().st_mode & 0o077 == 0
    agent = load_agent("agents.replay_agent:ReplayAgent", "fixer", definition=path)
    assert str(agent.schedule()) == "every 2h"
    again = call("add", "fixer", "--from", str(sample))
    assert again.exit_code == 2
    assert "exists: edit" in " ".join(again.output.split())


def test_add_shows_a_long_definition_whole(call: Callable[..., Result], sample: Path) -> None:
    fields = {f"field_with_a_name_{number}": number for number in range(200)}
    rows = [
        json.dumps({"task": f"t{row // 4}", "solved": row % 3 == 0} | dict.fromkeys(fields, row))
        for row in range(40)
    ]
    sample.write_text("\n".join(rows))
    shown = call("add", "fixer", "--from", str(sample), "--dry-run").stdout
    assert all(f"{name} = " in shown for name in fields)
    assert "[spec.targets]" in shown


def test_add_says_what_is_missing_and_writes_nothing(
    call: Callable[..., Result], sample: Path, folder: Path
) -> None:
    sample.write_text('{"a": 1, "b": 2}\n{"a": 2, "b": 3}\n')
    answer = call("add", "fixer", "--from", str(sample), "--json")
    assert answer.exit_code == 65
    said = json.loads(answer.stdout)
    assert not said["written"]
    assert len(said["missing"]) == 2
    assert not (folder / "home").exists()
    told = call("add", "fixer", "--from", str(sample))
    assert "missing: the group" in told.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["add", "Fixer"], "must match"),
        (["add", "se-darwin"], "is installed"),
        (["add", "fixer", "--schedule", "daily"], "'every 30m'"),
        (["enable", "gensis"], "one is genesis"),
        (["enable", "genesis", "--format", "xml"], "replay-trajectories, casebank"),
    ],
)
def test_wrong_arguments_are_named(
    call: Callable[..., Result], sample: Path, arguments: list[str], message: str
) -> None:
    more = ["--from", str(sample)] if arguments[0] == "add" else []
    answer = call(*arguments, *more)
    assert answer.exit_code == 2
    assert message in " ".join(answer.output.replace("│", "").split())


@pytest.mark.parametrize("content", [None, b"no record\n"])
def test_a_sample_that_cannot_be_read_is_named(
    call: Callable[..., Result], sample: Path, content: bytes | None
) -> None:
    sample.unlink()
    if content is not None:
        sample.write_bytes(content)
    answer = call("add", "fixer", "--from", str(sample))
    assert type(answer.exception).__name__ == "DefinitionNotWrittenError"
    assert str(sample) in str(answer.exception)


def test_the_preset_is_off_until_asked_for(call: Callable[..., Result], folder: Path) -> None:
    definitions = folder / "home" / "agents.d"
    answer = call("enable", "genesis", "--json")
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.stdout)["written"] == list(GENESIS_AGENTS)
    assert sorted(path.stem for path in definitions.iterdir()) == sorted(GENESIS_AGENTS)
    assert len(GENESIS_AGENTS) == len(set(GENESIS_AGENTS)) == 15
    assert (folder / "home" / "records" / "genesis").is_dir()
    for path in definitions.iterdir():
        load_agent("agents.replay_agent:ReplayAgent", path.stem, definition=path)
    (definitions / "seo.toml").write_text("mine")
    again = call("enable", "genesis")
    assert "0 definitions written" in again.stdout
    assert "let Genesis write" not in again.stdout  # the definitions may name another folder
    assert (definitions / "seo.toml").read_text() == "mine"


def test_the_preset_takes_the_records_of_each_agent_as_genesis_writes_them(
    call: Callable[..., Result], folder: Path
) -> None:
    """The ids are those of Genesis' code at 540273cb; the business differs from one to the next."""
    assert call("enable", "genesis").exit_code == 0
    home = folder / "home"
    ids = [
        agent_id.format(business=business)
        for agent_id in WRITTEN_BY.values()
        for business in ("acme", "a-b_c", "default")
    ]
    (home / "records" / "genesis" / "a.jsonl").write_text(
        "".join(json.dumps(trajectory_of(agent_id)) + "\n" for agent_id in ids)
    )
    taken = {}
    for name in GENESIS_AGENTS:
        definition = read_definition(home / "agents.d" / f"{name}.toml")
        source = RecordSource.of_definition(
            definition, name, home / "records" / "genesis", home / "agents" / name
        )
        taken[name] = [str(t.observation["agent"]) for t in source.new_transitions(60.0)]
    assert sorted(agent_id for of_agent in taken.values() for agent_id in of_agent) == sorted(ids)
    for name, agent_id in WRITTEN_BY.items():
        start = agent_id.partition("{")[0]
        assert [found.startswith(start) for found in taken[name]] == [True] * 3
    assert [name for name in taken if taken[name]] == [n for n in GENESIS_AGENTS if n in WRITTEN_BY]


def test_any_name_of_the_folder_of_records_makes_definitions_that_load(
    call: Callable[..., Result], folder: Path
) -> None:
    answer = call("enable", "genesis", "--records", 'records/"of Genesis" \U0001f600\\')
    assert answer.exit_code == 0, answer.output
    path = folder / "home" / "agents.d" / "seo.toml"
    load_agent("agents.replay_agent:ReplayAgent", "seo", definition=path)


def test_a_folder_of_records_that_cannot_be_made_is_named(
    call: Callable[..., Result], folder: Path
) -> None:
    (folder / "home").mkdir(exist_ok=True)
    (folder / "home" / "records").write_text("in the way")
    answer = call("enable", "genesis")
    assert type(answer.exception).__name__ == "DefinitionNotWrittenError"
    assert "--records" in str(answer.exception)
