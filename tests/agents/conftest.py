from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from agents.se_darwin.collection import open_corpus_sandbox
from agents.se_darwin.sandbox import Sandbox


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """A second thread slows small models down on shared cores."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """One sandbox for all tests; every candidate has its own process."""
    with open_corpus_sandbox() as sandbox:
        yield sandbox
