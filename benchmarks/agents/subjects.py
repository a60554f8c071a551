"""The agents that are measured, each with its records in a home of its own.

The records go the way that they go in a daemon: files in a folder, read by the agent's `collect`,
kept in its replay buffer, given to its `build_job`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from agents.replay_agent import ReplayAgent
from agents.se_darwin.settings import SEDarwinSettings
from agents.se_darwin_agent import SEDarwinAgent
from agents.waltzrl_conversation_agent import WaltzRLConversationAgent
from agents.waltzrl_feedback_agent import WaltzRLFeedbackAgent
from benchmarks.agents.businesses import BUSINESSES
from benchmarks.agents.conversations import (
    GameConversation,
    best_feedback_accuracy,
    converse,
    write_conversations,
)
from benchmarks.agents.records import rule_of, write_records
from benchmarks.measuring.agent_run import run_context
from genesis_fp16.settings.source import child_environment
from infrastructure.agent_contract import RunContext, Transition
from infrastructure.trajectories import ReplayBuffer
from infrastructure.world_model_agent import WorldModelAgent

RECORDS = Path("records/genesis")  # below the home, as the preset has it


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """An agent and its records.

    Attributes:
        name: Name of the agent.
        records: Where the records come from.
        build: Function that returns a new agent.
        home: Home whose folders ``agents/NAME`` belong to the agent.
        transitions: What it has recorded.
        best_accuracy: Best possible accuracy of predicting success; None if unknown.
    """

    name: str
    records: str
    build: Callable[[], WorldModelAgent]
    home: Path
    transitions: Sequence[Transition]
    best_accuracy: float | None

    def context(self, run_id: str, seed: int) -> RunContext:
        """Context of a run; its folder is created."""
        return run_context(self.name, self.home / "agents" / self.name, run_id, seed)


def enable_preset(home: Path) -> None:
    """Run ``genesis-fp16 agents enable genesis`` for *home*."""
    command = Path(sys.executable).with_name("genesis-fp16")
    subprocess.run(
        [str(command), "agents", "enable", "genesis"],
        check=True,
        env=child_environment({"GENESIS_HOME": str(home)}),
        stdout=subprocess.DEVNULL,
    )


def preset_subjects(home: Path, count: int, seed: int) -> list[Subject]:
    """The fifteen business agents, as the preset defines them, with *count* records each."""
    enable_preset(home)
    found = []
    for number, business in enumerate(BUSINESSES):
        rule = rule_of(business, number)
        write_records(home / RECORDS / f"{business.name}.jsonl", business, rule, count, seed)
    for number, business in enumerate(BUSINESSES):
        build = partial(ReplayAgent, home / "agents.d" / f"{business.name}.toml")
        found.append(
            Subject(
                name=business.name,
                records="generated",
                build=build,
                home=home,
                transitions=_collect(build(), home),
                best_accuracy=1.0 - rule_of(business, number).noise,
            )
        )
    return found


def waltzrl_subjects(home: Path, count: int, seed: int) -> list[Subject]:
    """The pair, with *count* conversations of the game."""
    conversations: list[GameConversation] = list(converse(count, seed))
    best = {
        WaltzRLFeedbackAgent: best_feedback_accuracy(conversations),
        WaltzRLConversationAgent: 1.0,  # the judge is a rule, and the agent reads what it judges
    }
    found = []
    for kind, accuracy in best.items():
        folder = home / "agents" / kind.name / "conversations"
        write_conversations(folder / "game.jsonl", conversations)
        found.append(
            Subject(
                name=kind.name,
                records="game",
                build=kind,
                home=home,
                transitions=_collect(kind(), home),
                best_accuracy=accuracy,
            )
        )
    return found


def se_darwin_subject(home: Path, count: int, seed: int) -> Subject:
    """SE-Darwin, with *count* candidates that it ran in its sandbox; they are kept in *home*.

    Raises:
        SandboxUnavailableError: This host cannot isolate candidates.
    """
    agent = SEDarwinAgent()
    context = replace(
        run_context(agent.name, home / "agents" / agent.name, "collecting", seed),
        settings=SEDarwinSettings(candidates_per_run=count),
    )
    buffer = ReplayBuffer(context.agent_folder / "replay")
    if len(buffer.read()) < count:
        with closing(buffer):
            for transition in agent.collect(context):
                buffer.append(transition)
    return Subject(
        name=agent.name,
        records="collected",
        build=SEDarwinAgent,
        home=home,
        transitions=list(buffer.read())[:count],
        best_accuracy=None,
    )


def casebank_subject(home: Path, casebank: Path) -> Subject:
    """An agent that is defined for Genesis' own *casebank*: what its tests remembered."""
    definition = home / "agents.d" / "casebank.toml"
    definition.parent.mkdir(parents=True, exist_ok=True)
    folder = home / "records" / "casebank"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "casebank.jsonl").write_bytes(casebank.read_bytes())
    definition.write_text('[source]\npath = "records/casebank"\nformat = "casebank"\n')
    return Subject(
        name="casebank",
        records="Genesis",
        build=partial(ReplayAgent, definition),
        home=home,
        transitions=_collect(ReplayAgent(definition), home),
        best_accuracy=None,
    )


def _collect(agent: WorldModelAgent, home: Path) -> list[Transition]:
    """What *agent* finds, recorded in its replay buffer."""
    context = run_context(agent.name, home / "agents" / agent.name, "collecting", 0)
    buffer = ReplayBuffer(context.agent_folder / "replay")
    with closing(buffer):
        for transition in agent.collect(context):
            buffer.append(transition)
    return list(buffer.read())
