from collections.abc import Iterator
from contextlib import closing

import pytest

from genesis_fp16.settings import Settings
from tests.genesis_fp16.new_store import new_store
from tests.genesis_fp16.runs.retained_runs import Clock, Runs


@pytest.fixture
def runs(home_settings: Settings) -> Iterator[Runs]:
    clock = Clock()
    with closing(new_store(home_settings, clock)) as store:
        yield Runs(home_settings, store, clock)
