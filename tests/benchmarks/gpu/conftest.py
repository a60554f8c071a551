"""A run adopts what its sections leave behind; the process of the tests did so before, or not."""

from collections.abc import Iterator

import pytest

from tests.preloaded import adopt_orphans


@pytest.fixture
def _adopting() -> Iterator[None]:
    before = adopt_orphans()
    yield
    adopt_orphans(before)
