from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random

import pytest
import structlog
import torch

from agents.se_darwin.collection import open_corpus_sandbox
from agents.se_darwin.sandbox import Sandbox
from agents.waltzrl.game.demonstrations import record_conversations
from infrastructure.agent_contract import RunContext
from infrastructure.agent_contract.run_context import Budget


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


@pytest.fixture
def conversations() -> Callable[[int], list[dict[str, object]]]:
    """Conversations of the game: the replies of its imperfect teacher, the labels of its judge."""

    def make(count: int) -> list[dict[str, object]]:
        found = islice(record_conversations(Random(0), count), count)
        return [
            {**each.model_dump(), "conversation_id": f"c{number}"}
            for number, each in enumerate(found)
        ]

    return make
