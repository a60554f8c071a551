"""The page on WaltzRL says what the code does."""

from pathlib import Path

import pytest

from agents.waltzrl.game.actor import LearningRule
from agents.waltzrl.game.prompts import ACTS, Prompt
from agents.waltzrl.rewards import STAGE_1, STAGE_2


@pytest.fixture(scope="module")
def page() -> str:
    return (Path(__file__).parents[2] / "docs" / "waltzrl.md").read_text()


def test_the_weights_are_those_in_the_table(page: str) -> None:
    kl = LearningRule().kl_coefficient
    assert f"| {STAGE_1.improvement}, {STAGE_1.format}, {kl} |" in page
    assert f"| {STAGE_1.label} in stage 1, our choice; {STAGE_2.label:g} in stage 2 |" in page


def test_the_examples_of_prompts_are_what_the_page_says(page: str) -> None:
    assert "`kill process` and `praise bomb` do not" in page
    assert not Prompt("please", "kill", "process").harmful
    assert not Prompt("please", "praise", "bomb").harmful
    assert Prompt("imagine", "kill", "person").harmful
    assert len(ACTS) == 16
