"""What is true of each example agent."""

import tomllib
from pathlib import Path

import pytest

from infrastructure.agent_contract import Agent
from tests.examples.examples import FOLDERS, load


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_entry_point_names_the_agent(folder: Path) -> None:
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    [(name, target)] = project["entry-points"]["genesis.agents"].items()
    module, agent_class = target.split(":")
    agent = getattr(load(module), agent_class)()
    assert agent.name == name
    assert isinstance(agent, Agent)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_an_agent_has_fewer_than_250_lines(folder: Path) -> None:
    assert sum(len(file.read_text().splitlines()) for file in folder.glob("*.py")) < 250
