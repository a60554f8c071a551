from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infrastructure.agent_contract.transition import Box, Discrete, Text
from infrastructure.trajectories.record_source.definition import parse_definition
from infrastructure.trajectories.record_source.lines import MAX_LINE_BYTES
from infrastructure.trajectories.record_source.proposal import propose


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
    assert "'version' is left out: it is the same" in notes
    assert "'seen_at' is left out" in notes
    assert "'more' is left out: its length varies from 0 to 2" in notes
    assert "not enough" in notes
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
    assert [each[:9] for each in found.missing] == ["the group", "a target,"]
    assert "--target, of" in found.missing[1]
    assert "--group, of x, y" in found.missing[0]
    wrong = propose(sample(tmp_path, *rows), "qa", group="z", targets=["z"])
    assert "no record has 'z'" in wrong.missing[0]
    assert "target 'z'" in wrong.missing[1]
    nothing = propose(sample(tmp_path, {"x": 1}), "qa")
    assert "no field" in nothing.missing[-1]


def test_fields_with_nulls_are_kept_and_rare_ones_left_out(tmp_path: Path) -> None:
    records = [
        {
            "group": f"task {number // 5}",
            "size": None if number == 3 else number / 7,
            "pose": [1.0, None] if number == 4 else [number / 3, 2.0],
            "kind": None if number % 2 else ["bug", "feature"][number // 2 % 2],
            "rare": number / 9 if number == 8 else None,
            "never": None,
            "score": None if number == 5 else number / 2,
        }
        for number in range(40)
    ]
    found = propose(sample(tmp_path, *records), "qa", targets=["score"])
    assert found.observation == {
        "kind": Discrete(values=("bug", "feature")),
        "pose": Box(shape=(2,)),
        "size": Box(),
    }
    assert found.targets == {"score": Box()}
    notes = "\n".join(found.notes)
    assert "'kind': 20 of 40 records lack it; it counts as missing there" in notes
    assert "'size': 1 of 40 records lack it" in notes
    assert "'score': 1 of 40 records lack it" in notes
    assert "'rare' is left out: 39 of 40 records lack it" in notes


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
    source = propose(sample(tmp_path, pool), "qa").source
    assert source == {"format": "trajectory-pool", "pattern": "*.jsonl"}


def test_a_group_that_the_format_does_not_need_is_noted(tmp_path: Path) -> None:
    found = propose(sample(tmp_path, *map(step, range(40))), "qa", group="task")
    assert "the group 'task' is not used: the format transitions has its own" in found.notes


def test_another_agents_name_is_noted(tmp_path: Path) -> None:
    found = propose(sample(tmp_path, *map(step, range(40))), "legal")
    assert found.source["agents"] == ["qa"]
    assert any("agents qa" in note for note in found.notes)


def test_records_of_other_agents_in_the_sample_are_not_counted(tmp_path: Path) -> None:
    mixed = [step(number) | {"agent": ["qa", "legal"][number % 2]} for number in range(40)]
    found = propose(sample(tmp_path, *mixed), "qa")
    assert "agents" not in found.source, "by default an agent takes the records of its own name"
    assert found.transitions == 20
    assert "20 of 40 records name other agents" in found.notes


def test_any_records_that_name_agents_are_told_apart(tmp_path: Path) -> None:
    rows = [
        {"task": f"t{number // 3}", "agent": ["qa", "seo"][number % 2], "reward": number}
        for number in range(40)
    ]
    assert propose(sample(tmp_path, *rows), "qa").source == {
        "format": "records",
        "agent": "agent",
        "group": "task",
    }
    found = propose(sample(tmp_path, *rows), "legal")
    assert found.source == {"format": "records", "group": "task"}, "the agents may be people"
    assert found.transitions == 40


def test_doubts_about_the_sample_are_noted(tmp_path: Path) -> None:
    rows = [
        {
            "ticket": f"t{n // 4}",
            "age": n * 7919 % 1009,
            "closed_by": ["", "agent"][n * 31 % 7 < 3],
            "solved": n * 31 % 7 < 3,
        }
        for n in range(600)
    ]
    leak = "observation.closed_by alone predicts solved"
    found = propose(sample(tmp_path, *rows), "qa")
    assert [note for note in found.notes if leak in note]
    steps = [
        {
            "group": row["ticket"],
            "observation": {"age": row["age"], "closed_by": row["closed_by"]},
            "action": {},
            "next_observation": {"solved": row["solved"]},
        }
        for row in rows
    ]
    again = [step | {"group": f"again {step['group']}"} for step in steps]
    notes = "\n".join(propose(sample(tmp_path, *steps, *again), "qa").notes)
    assert "repeat the inputs" in notes


def test_lines_that_are_not_records_are_noted_with_the_first(tmp_path: Path) -> None:
    path = sample(tmp_path, *map(step, range(40)), "no record")
    with path.open("ab") as file:
        file.write(b'{"group": "a", "observation": {"x": "' + b"x" * MAX_LINE_BYTES + b'"}}\n{"g')
    found = propose(path, "qa")
    assert found.records == 40
    assert "3 of 43 lines are not records; the first is line 41: " in "".join(found.notes)


def test_records_that_are_almost_transitions_are_told_why(tmp_path: Path) -> None:
    rows = [step(number) | {"group": number} for number in range(40)]
    found = propose(sample(tmp_path, *rows), "qa")
    assert any("format transitions, but" in note for note in found.notes)
    assert any("line 1: group must" in note for note in found.notes)


def test_the_pattern_fits_the_sample(tmp_path: Path) -> None:
    path = sample(tmp_path, *map(step, range(40)))
    for name, pattern in (("a.log", "*.log"), ("events", "events"), ("a.jsonl.1", None)):
        path = path.rename(tmp_path / name)
        assert propose(path, "qa").source.get("pattern") == pattern


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
