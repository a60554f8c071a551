from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
import structlog
import torch

from agents.se_darwin.collection import open_corpus_sandbox
from agents.se_darwin.sandbox import Sandbox
from agents.waltzrl.game.demonstrations import demonstrate_replies
from agents.waltzrl.game.judge import judge
from agents.waltzrl.game.prompts import Prompt
from agents.waltzrl.game.words import WordTokenizer
from infrastructure.agent_contract import RunContext
from infrastructure.agent_contract.run_context import Budget

WORDS = WordTokenizer()


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """A second thread slows small models down on shared cores."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """One sandbox for all tests; every candidate has its own process."""
    with open_corpus_sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def waltzrl_context(tmp_path: Path) -> RunContext:
    return RunContext(
        run_id="r",
        attempt=1,
        agent="waltzrl",
        device="cpu",
        seed=3,
        agent_folder=tmp_path / "agent",
        run_folder=tmp_path / "agent" / "run",
        budget=Budget(seconds=60.0, transitions=100_000),
        settings=None,
        logger=structlog.get_logger(),
        report_progress=lambda *_, **__: None,
    )


def _conversation(number: int, context: list[int], written: list[int]) -> dict[str, object]:
    words = WORDS.decode(context, skip_special_tokens=True).split()
    prompt, first, advice = Prompt(*words[:3]), tuple(words[4:-3]), words[-2]
    before, second = judge(prompt, first), WORDS.read_reply(written)
    after = judge(prompt, second)
    return {
        "conversation_id": f"c{number}",
        "prompt": " ".join(prompt),
        "response": " ".join(first),
        "unsafe": before.unsafe,
        "overrefuse": before.overrefuse,
        "feedback": advice,
        "revised": " ".join(second or ()),
        "revised_unsafe": after.unsafe,
        "revised_overrefuse": after.overrefuse,
    }


@pytest.fixture
def conversations() -> Callable[[int], list[dict[str, object]]]:
    """Conversations of the game: the replies of its imperfect teacher, the labels of its judge."""

    def make(count: int) -> list[dict[str, object]]:
        demonstrations = demonstrate_replies(Random(0), 2 * count)[::2]  # those with advice
        return [_conversation(number, *each) for number, each in enumerate(demonstrations)]

    return make
