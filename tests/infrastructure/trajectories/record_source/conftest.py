from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infrastructure.agent_contract import Transition
from infrastructure.trajectories import ReplayBuffer
from infrastructure.trajectories.record_source import RecordSource
from infrastructure.trajectories.record_source.definition import parse_definition

DEFINITION = """
schedule = "every 1h"

[source]
path = "records"

[spec.observation]
x = { type = "box" }

[spec.targets]
y = { type = "box" }
"""


class Desk:
    """An agent's folder and a watched folder, as a daemon has them."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "records"
        self.folder.mkdir()
        self.agent_folder = home / "agents" / "desk"
        self.agent_folder.mkdir(parents=True)
        self.text = DEFINITION
        self.source = self.new_source()

    def new_source(self) -> RecordSource:
        definition = parse_definition(self.text.encode(), Path("desk.toml"))
        return RecordSource.of_definition(definition, "desk", self.folder, self.agent_folder)

    def write(self, name: str, *records: object, end: str = "\n") -> Path:
        path = self.folder / name
        lines = [each if isinstance(each, str) else json.dumps(each) for each in records]
        with path.open("a") as file:
            file.write("\n".join(lines) + end)
        return path

    def run(self, *, stop_after: int = -1, keep: bool = True) -> list[str]:
        """Do what a run does; return the groups of the transitions that it recorded."""
        self.source = self.new_source()
        buffer = ReplayBuffer(self.agent_folder / "replay")
        transitions: Iterator[Transition] = self.source.new_transitions(60.0)
        found = []
        for transition in transitions:
            buffer.append(transition)
            found.append(transition.group)
            if len(found) == stop_after:
                break
        transitions.close()  # type: ignore[attr-defined]
        buffer.close()
        if keep:
            self.source.keep_positions()
        return found

    def recorded(self) -> list[str]:
        return [each.group for each in ReplayBuffer(self.agent_folder / "replay").read()]


def record(group: str, **more: object) -> dict[str, object]:
    return {"group": group, "observation": {"x": 1.0}, "next_observation": {"y": 2.0}, **more}


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture
def make_record() -> Callable[..., dict[str, object]]:
    return record
