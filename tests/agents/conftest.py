from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from agents.se_darwin.collection import open_sandbox
from agents.se_darwin.sandbox import Sandbox


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Small models on shared cores lose more than they gain by a second thread."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """One jail for all tests; every candidate has a process of its own anyway."""
    with open_sandbox() as sandbox:
        yield sandbox
