"""A store in the server of the session, and the environment in which clients reach it."""

import secrets

import pytest

from genesis_fp16.system.object_store import ObjectStore
from tests.genesis_fp16.executors.object_server import ObjectServer


@pytest.fixture
def store(object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """A place of its own in the bucket."""
    for name, value in object_server.variables.items():
        monkeypatch.setenv(name, value)
    return ObjectStore(f"{object_server.url}/{secrets.token_hex(4)}")
