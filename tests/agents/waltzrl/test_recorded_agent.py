from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import structlog

from agents.waltzrl.recorded_agent import (
    RecordedConversationAgent,
    RecordedConversationSettings,
    best_of_k,
)
from agents.waltzrl_conversation_agent import WaltzRLConversationAgent
from agents.waltzrl_feedback_agent import WaltzRLFeedbackAgent
from infrastructure.agent_contract import RunContext, Transition
from infrastructure.agent_contract.agent import InsufficientDataError
from infrastructure.trajectories import ReplayBuffer
from infrastructure.trajectories.record_source import SourceFolderError
from infrastructure.world_model.fitting import prepare_training_data

Conversations = Callable[[int], list[dict[str, object]]]


def write(path: Path, records: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each) + "\n" for each in records))


def record(context: RunContext, agent: RecordedConversationAgent | None = None) -> list[Transition]:
    """What the worker does with collected transitions, if there are too few to train on."""
    agent = agent or WaltzRLFeedbackAgent()
    buffer = ReplayBuffer(context.agent_folder / "replay")
    found = list(agent.collect(context))
    for each in found:
        buffer.append(each)
    buffer.close()
    with suppress(InsufficientDataError):
        agent.build_job(context, found[:100])
    return found


def test_each_run_records_what_is_new(
    waltzrl_context: RunContext, conversations: Conversations
) -> None:
    assert record(waltzrl_context) == []
    folder = waltzrl_context.agent_folder / "conversations"
    assert folder.is_dir()  # so that its place is seen
    records = conversations(30)
    write(folder / "a.jsonl", records[:20])
    first = record(waltzrl_context)
    (folder / "a.jsonl").rename(folder / "a.jsonl.1")
    write(folder / "a.jsonl", records[10:])
    later = record(waltzrl_context)
    assert record(waltzrl_context) == []
    assert (len(first), len(later)) == (20, 10)
    assert len({each.group for each in first + later}) == 30


def test_a_run_that_ends_between_two_transitions_of_a_line_loses_none(
    waltzrl_context: RunContext, conversations: Conversations
) -> None:
    write(waltzrl_context.agent_folder / "conversations" / "a.jsonl", conversations(1))
    buffer = ReplayBuffer(waltzrl_context.agent_folder / "replay")
    first, second = WaltzRLConversationAgent().collect(waltzrl_context)
    buffer.append(first)
    buffer.close()
    assert list(WaltzRLConversationAgent().collect(waltzrl_context)) == [second]


def test_damage_is_told_once_and_costs_itself(
    waltzrl_context: RunContext, conversations: Conversations, tmp_path: Path
) -> None:
    """A record without an id, two writers in one line, a torn line, and one being written."""
    records = conversations(5)
    stopped = {key: each for key, each in records[0].items() if "revised" not in key}
    lines = [json.dumps(each) for each in (*records, {**stopped, "feedback": ""})]
    text = [json.dumps({"conversation_id": 1}), lines[0] + lines[1], lines[2][:30] + lines[3]]
    (tmp_path / "a.jsonl").write_text("\n".join([*text, lines[5], lines[4][:40]]))
    context = replace(waltzrl_context, settings=RecordedConversationSettings(folder=tmp_path))
    with structlog.testing.capture_logs() as logs:
        assert [each.group for each in record(context)] == ["c0", "c1", "c3"]
    [read] = [each for each in logs if each["event"] == "records_read"]
    counts = [read[name] for name in ("records", "duplicates", "refused", "incomplete", "misfits")]
    assert counts == [3, 0, 2, 1, 0]  # a line without feedback is nothing to the feedback agent
    problems = [each["problem"] for each in logs if each["event"] == "records_incomplete"]
    assert any("conversation_id: " in each for each in problems)
    assert any("first: a.jsonl line 1" in each for each in problems)
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write(lines[4][40:] + "\n")
    with structlog.testing.capture_logs() as logs:
        assert [each.group for each in record(context)] == ["c4"]
    assert [each["event"] for each in logs] == ["records_read"]


def test_a_missing_folder_names_the_setting(waltzrl_context: RunContext, tmp_path: Path) -> None:
    missing = RecordedConversationSettings(folder=tmp_path / "missing")
    with pytest.raises(SourceFolderError, match=r"missing.*FOLDER"):
        record(replace(waltzrl_context, settings=missing))


def test_too_few_conversations_or_positives_are_refused(
    waltzrl_context: RunContext, conversations: Conversations
) -> None:
    agent = WaltzRLFeedbackAgent()
    write(waltzrl_context.agent_folder / "conversations" / "a.jsonl", conversations(900))
    transitions = record(waltzrl_context, agent)
    with pytest.raises(InsufficientDataError, match=r"199 conversations.* 200") as few:
        agent.build_job(waltzrl_context, transitions[:199])
    assert str(waltzrl_context.agent_folder / "conversations") in str(few.value)
    improving = [each for each in transitions if each.reward > 0]
    others = [each for each in transitions if each.reward <= 0]
    with pytest.raises(InsufficientDataError, match=r"29 .*improvement 1"):
        agent.build_job(waltzrl_context, others[:250] + improving[:29])


@pytest.mark.process  # fits for a second
def test_the_ablation_tells_feedback_that_matters_from_feedback_that_does_not(
    waltzrl_context: RunContext, conversations: Conversations
) -> None:
    agent = WaltzRLFeedbackAgent()
    records = conversations(1500)
    write(waltzrl_context.agent_folder / "conversations" / "a.jsonl", records)
    found = agent.ablation(prepare_training_data(agent.spec(), agent.collect(waltzrl_context)))
    assert found["feedback_gain"] > 3 * found["feedback_gain_standard_error"] > 0.0
    advice = [each["feedback"] for each in records]
    Random(0).shuffle(advice)
    shuffled = [{**each, "feedback": text} for each, text in zip(records, advice, strict=True)]
    write(waltzrl_context.agent_folder / "conversations" / "a.jsonl", shuffled)
    found = agent.ablation(prepare_training_data(agent.spec(), agent.collect(waltzrl_context)))
    assert abs(found["feedback_gain"]) < 3 * found["feedback_gain_standard_error"]


def test_best_of_k_by_hand() -> None:
    """States a and b have several actions: chosen 1 and -1, means 1/3 and 0, best 1 and 1.

    The uplifts are 2/3 and -1: their standard error is half of the distance between them.
    """

    def step(state: str, reward: float) -> Transition:
        return Transition(group=state, observation={"s": state}, action={}, reward=reward)

    transitions = [step("a", 0), step("a", 1), step("b", 1), step("c", 1), step("a", 0)]
    transitions.append(step("b", -1))
    found = best_of_k(transitions, [0.1, 0.9, 0.2, 0.5, 0.3, 0.4])
    assert found == {
        "best_of_k.states": 2.0,
        "best_of_k.uplift": pytest.approx((1 - 1) / 2 - (1 / 3 + 0) / 2),
        "best_of_k.uplift_standard_error": pytest.approx((2 / 3 + 1) / 2),
        "best_of_k.possible": pytest.approx((1 + 1) / 2 - (1 / 3 + 0) / 2),
    }
    assert best_of_k(transitions[3:4], [0.5]) == {"best_of_k.states": 0.0}
