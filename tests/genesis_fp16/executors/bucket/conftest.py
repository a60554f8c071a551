"""A bucket in the server of the session, and the environment in which clients reach it."""

import secrets

import pytest

from genesis_fp16.system.bucket import Bucket
from tests.genesis_fp16.executors.object_server import ObjectServer


@pytest.fixture
def bucket(object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A place of its own in the bucket."""
    for name, value in object_server.variables.items():
        monkeypatch.setenv(name, value)
    return Bucket(f"{object_server.url}/{secrets.token_hex(4)}")
