"""The page on WaltzRL says what the code does."""

import json
import re
from pathlib import Path

import pytest

from agents.waltzrl.conversations import Conversation
from agents.waltzrl.game.actor import LearningRule
from agents.waltzrl.game.prompts import ACTS, Prompt
from agents.waltzrl.recorded_agent import NEEDED_CONVERSATIONS, NEEDED_POSITIVES
from agents.waltzrl.rewards import STAGE_1, STAGE_2
from infrastructure.trajectories.record_source.lines import MAX_LINE_BYTES


@pytest.fixture(scope="module")
def page() -> str:
    return (Path(__file__).parents[2] / "docs" / "how-to/waltzrl.md").read_text()


def test_the_weights_are_those_in_the_table(page: str) -> None:
    kl = LearningRule().kl_coefficient
    assert f"| {STAGE_1.improvement}, {STAGE_1.format}, {kl} |" in page
    assert f"| {STAGE_1.label} in stage 1, our choice; {STAGE_2.label:g} in stage 2 |" in page


def test_the_example_of_a_record_is_one(page: str) -> None:
    (example,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    record = json.loads(example)
    assert set(record) == set(Conversation.model_fields) - {"judge"}  # only of labels by a program
    assert Conversation.model_validate(record).after is not None


def test_the_limits_are_those_of_the_agents(page: str) -> None:
    assert (
        f"fewer than {NEEDED_CONVERSATIONS} conversations, or fewer than {NEEDED_POSITIVES} "
        in page
    )
    assert f"over {MAX_LINE_BYTES >> 20} MiB" in page


def test_the_examples_of_prompts_are_what_the_page_says(page: str) -> None:
    assert "`kill process` and `praise bomb` do not" in page
    assert not Prompt("please", "kill", "process").harmful
    assert not Prompt("please", "praise", "bomb").harmful
    assert Prompt("imagine", "kill", "person").harmful
    assert len(ACTS) == 16
