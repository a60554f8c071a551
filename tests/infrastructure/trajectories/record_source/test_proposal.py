from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infrastructure.agent_contract.transition import Box, Discrete, Text
from infrastructure.trajectories.record_source.definition import parse_definition
from infrastructure.trajectories.record_source.proposal import SampleError, propose


def sample(path: Path, *records: object) -> Path:
    file = path / "sample.jsonl"
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return file


def step(number: int) -> dict[str, object]:
    return {
        "group": f"task {number // 5}",
        "agent": "qa",
        "observation": {
            "state": [number / 7, 1.0],
            "suite": ["unit", "e2e"][number % 2],
            "version": 3,
            "seen_at": f"2026-01-{number:02}",
        },
        "action": {"edit": f"rename {number} things", "more": [1.0] * (number % 3)},
        "reward": number / 10,
        "next_observation": {"state": [number / 9, 2.0], "passed": number % 3 == 0},
    }


def test_fields_types_and_targets_of_transitions(tmp_path: Path) -> None:
    found = propose(sample(tmp_path, *map(step, range(40)), "no record"), "qa")
    assert found.observation == {
        "state": Box(shape=(2,)),
        "suite": Discrete(values=("e2e", "unit")),
    }
    assert found.action == {"edit": Text()}
    assert found.targets == {
        "passed": Discrete(values=("false", "true")),
        "reward": Box(),
        "state": Box(shape=(2,), delta=True),
    }
    assert (found.records, found.transitions, found.groups) == (40, 40, 8)
    assert found.missing == []
    notes = "\n".join(found.notes)
    assert "'version' is left out: it is the same in every record" in notes
    assert "'seen_at' is left out: it looks like a time" in notes
    assert "'more' is left out: its length varies from 0 to 2" in notes
    assert "not enough to train on" in notes
    text = found.to_toml(tmp_path, "every 1h")
    definition = parse_definition(text.encode(), Path("qa.toml"))
    assert definition.transition_spec().targets == found.targets
    assert definition.transition_spec().success == ("passed", "true")


def test_group_and_targets_of_any_records(tmp_path: Path) -> None:
    rows = [
        {
            "id": number,
            "task": {"name": f"t{number // 3}"},
            "cost": {"tokens": number},
            "outcome": {"score": number % 7 / 7},
        }
        for number in range(30)
    ]
    found = propose(sample(tmp_path, *rows), "qa")
    assert found.source == {"format": "records", "group": "task.name", "id": "id"}
    assert (found.observation, found.targets) == ({"cost.tokens": Box()}, {"outcome.score": Box()})
    assert found.missing == []
    text = found.to_toml(tmp_path / 'odd "name"\x7f', "every 1h")
    definition = parse_definition(text.encode(), Path("qa.toml"))
    assert list(definition.transition_spec().observation) == ["cost.tokens"]

    chosen = propose(sample(tmp_path, *rows), "qa", group="id", targets=["cost.tokens"])
    assert (chosen.source["group"], list(chosen.targets)) == ("id", ["cost.tokens"])


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    rows = [{"x": number, "y": number * 2} for number in range(9)]
    found = propose(sample(tmp_path, *rows), "qa")
    assert [problem.partition(":")[0] for problem in found.missing] == [
        "the group (episode, task, conversation)",
        "a target, which the world model predicts; name it with --target, of",
    ]
    assert "name it with --group, of x, y" in found.missing[0]
    wrong = propose(sample(tmp_path, *rows), "qa", group="z", targets=["z"])
    assert "no record has 'z'" in wrong.missing[0]
    assert "the target 'z': it is not in every record" in wrong.missing[1]
    nothing = propose(sample(tmp_path, {"x": 1}), "qa")
    assert "no field could be one" in nothing.missing[-1]


def test_genesis_formats_are_recognised(tmp_path: Path) -> None:
    case = {"state": "s", "reward": 0.5, "metadata": {"agent": "qa"}}
    assert propose(sample(tmp_path, case), "qa").source == {"format": "casebank"}
    trajectory = {
        "task_description": "t",
        "final_outcome": "success",
        "reward": 1.0,
        "steps": [{"tool_name": "a"}],
    }
    found = propose(sample(tmp_path, trajectory), "qa")
    assert found.source == {"format": "replay-trajectories"}
    assert parse_definition(found.to_toml(tmp_path, "every 1h").encode(), Path("qa.toml"))
    pool = {"trajectories": {"a": {"success_score": 0.5}}}
    assert propose(sample(tmp_path, pool), "qa").source == {"format": "trajectory-pool"}


def test_a_pipe_is_refused_without_waiting_for_its_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        propose(tmp_path / "pipe", "qa")


def test_a_group_that_the_format_does_not_need_is_noted(tmp_path: Path) -> None:
    found = propose(sample(tmp_path, *map(step, range(40))), "qa", group="task")
    assert "the group 'task' is not used: the format transitions has its own" in found.notes


def test_another_agents_name_is_noted(tmp_path: Path) -> None:
    found = propose(sample(tmp_path, *map(step, range(40))), "legal")
    assert found.source["agents"] == ["qa"]
    assert any("name the agents qa" in note for note in found.notes)


@pytest.mark.parametrize("content", ["", "\n\n", "1\n[]\n", "\x00\xff"])
def test_a_sample_without_records_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "sample").write_text(content, encoding="latin-1")
    with pytest.raises(SampleError, match="has no record"):
        propose(tmp_path / "sample", "qa")


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text()


@pytest.mark.process
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["task", "a", "b.c", "reward", ""]) | st.text(),
            VALUES | st.lists(VALUES) | st.dictionaries(st.text(), VALUES),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_any_sample_gives_a_definition_or_says_what_is_missing(
    tmp_path: Path, rows: list[dict[str, object]]
) -> None:
    found = propose(sample(tmp_path, *rows), "qa")
    text = found.to_toml(tmp_path, "every 1h")
    assert tomllib.loads(text)["source"]["format"] == "records"
    if not found.missing:
        parse_definition(text.encode(), Path("qa.toml"))
