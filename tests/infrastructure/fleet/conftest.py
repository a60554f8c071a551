"""One thread, and torch's global generator seeded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.default_generator.manual_seed(0)
    yield
    torch.set_num_threads(threads)
