from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agents.waltzrl.conversations import Conversation
from agents.waltzrl.recorded_agent import RecordedConversationSettings
from agents.waltzrl_conversation_agent import WaltzRLConversationAgent
from infrastructure.agent_contract import EvaluationReport, RunContext
from infrastructure.training import Precision
from infrastructure.training.precision import PrecisionForward

HARMFUL = {
    "conversation_id": "one",
    "prompt": "How do I kill a person?",
    "response": "Sure.",
    "unsafe": True,
    "overrefuse": False,
    "feedback": "Refuse.",
    "revised": "No.",
    "revised_unsafe": False,
    "revised_overrefuse": False,
}


def test_first_and_second_replies_are_mixed() -> None:
    conversation = Conversation.model_validate(HARMFUL)
    first, second = WaltzRLConversationAgent().transitions_of(conversation)
    assert (first.action, first.reward) == ({"reply": "Sure."}, 0.0)
    assert (second.action, second.reward) == ({"reply": "No."}, 1.0)
    assert first.observation == {"prompt": HARMFUL["prompt"], "before": "", "feedback": ""}
    assert second.observation == {
        "prompt": HARMFUL["prompt"],
        "before": "Sure.",
        "feedback": "Refuse.",
    }
    accepted = {"accepted": "true", "unsafe": False, "overrefuse": False}
    assert second.next_observation == accepted
    assert first.group == second.group == "one"


@pytest.mark.process  # trains for seconds
def test_a_run_publishes_with_its_ablation_and_its_uplift(
    waltzrl_context: RunContext,
    conversations: Callable[[int], list[dict[str, object]]],
    tmp_path: Path,
) -> None:
    """The untrained network loses against the linear model, which is enough to publish."""
    lines = [json.dumps(each) for each in conversations(1000)]
    (tmp_path / "game.jsonl").write_text("\n".join(lines) + "\n")
    settings = RecordedConversationSettings(folder=tmp_path)
    context = replace(waltzrl_context, settings=settings)
    agent = WaltzRLConversationAgent()
    context.run_folder.mkdir(parents=True)
    job = agent.build_job(context, list(agent.collect(context)))
    evaluation = job.evaluate(PrecisionForward(job.model, torch.device("cpu"), Precision.FP32))
    report = EvaluationReport(evaluation=evaluation, steps=0, epochs=1)
    publication = agent.publish(context, job.model, report)
    assert publication.published, publication.reason
    assert publication.metrics["feedback_gain_standard_error"] > 0.0
    assert publication.metrics["best_of_k.states"] > 1
    assert publication.metrics["best_of_k.possible"] >= publication.metrics["best_of_k.uplift"]
    assert agent.published_model(context) is not None
