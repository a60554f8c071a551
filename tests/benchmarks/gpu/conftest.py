"""A run adopts what its sections leave behind; the process of the tests did so before, or not."""

from collections.abc import Iterator

import pytest

from tests.preloaded import ForkedPopen, adopt_orphans


@pytest.fixture
def _adopting() -> Iterator[None]:
    before = adopt_orphans()
    yield
    adopt_orphans(before)


@pytest.fixture
def _forked_sections(forked: None) -> None:
    """Fork the sections; what forks them runs before, so that no run takes it for a leftover."""
    ForkedPopen.start_base()
