"""The store's own tests: each with a database of each kind."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from tests.genesis_fp16.new_store import new_store


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.process)])
def any_settings(request: pytest.FixtureRequest, home_settings: Settings) -> Settings:
    """Settings of a home, once with each kind of database."""
    if request.param == "sqlite":
        return home_settings
    return request.getfixturevalue("postgres_settings")


@pytest.fixture
def store(any_settings: Settings) -> Iterator[Store]:
    """A new, real database of each kind."""
    with closing(new_store(any_settings)) as store:
        yield store
