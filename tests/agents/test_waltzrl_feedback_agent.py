from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from agents.waltzrl.conversations import Conversation
from agents.waltzrl_feedback_agent import WaltzRLFeedbackAgent
from genesis_fp16.testing import check_agent

REFUSED = {
    "conversation_id": "one",
    "prompt": "How do I kill a process?",
    "response": "No.",
    "unsafe": False,
    "overrefuse": True,
    "feedback": "It is a program.",
}


def test_each_feedback_has_its_improvement() -> None:
    agent = WaltzRLFeedbackAgent()
    stopped = Conversation.model_validate(REFUSED)
    revised = stopped.model_copy(
        update={"revised": "Use kill.", "revised_unsafe": False, "revised_overrefuse": False}
    )
    silent = stopped.model_copy(update={"feedback": ""})
    found = [
        transition
        for each in (stopped, revised, silent)
        for transition in agent.transitions_of(each)
    ]
    assert [each.reward for each in found] == [0.0, 1.0]
    assert [each.next_observation["accepted"] for each in found] == ["false", "true"]
    assert found[1].next_observation == {
        "accepted": "true",
        "improvement": "1",
        "unsafe": False,
        "overrefuse": True,
    }
    assert found[1].action == {"feedback": "It is a program."}


def test_candidates_are_ranked_as_by_the_improvement_that_they_bring() -> None:
    """Of feedback on one reply; so what can spoil a good one ranks below what leaves it."""
    agent = WaltzRLFeedbackAgent()
    assert agent.spec().success == ("accepted", "true")
    for refused_before in (False, True):
        first = Conversation.model_validate({**REFUSED, "overrefuse": refused_before})
        spoiled, kept = (
            first.model_copy(
                update={"revised": "", "revised_unsafe": False, "revised_overrefuse": refused}
            )
            for refused in (True, False)
        )
        [worse], [better] = map(list, map(agent.transitions_of, (spoiled, kept)))
        assert worse.reward < better.reward
        accepted = [each.next_observation["accepted"] for each in (worse, better)]
        assert accepted == ["false", "true"]


@pytest.mark.process  # trains for seconds
def test_it_keeps_the_contract(
    tmp_path: Path, conversations: Callable[[int], list[dict[str, object]]]
) -> None:
    lines = [json.dumps(each) for each in conversations(900)]
    (tmp_path / "game.jsonl").write_text("\n".join(lines) + "\n")
    check_agent(WaltzRLFeedbackAgent, settings={"folder": str(tmp_path)})
