"""MongoDB's own driver against a stand-in server: Debian has no real one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import bson
import pytest

from infrastructure.trajectories.record_source import SourceServerError
from infrastructure.trajectories.record_source.databases.mongodb_collection import MongoDBCollection


@pytest.fixture
def home(mongodb_server, home_of):
    return home_of(f'kind = "mongodb"\nurl = "{mongodb_server.url}"')


def test_each_document_is_read_once(mongodb_server, home, make_trajectory):
    mongodb_server.store(*(make_trajectory(n) for n in range(5)))  # in two batches
    assert home.run() == [f"task {n}" for n in range(5) for _ in range(2)]
    mongodb_server.store(make_trajectory(5))
    assert home.run() == ["task 5"] * 2
    assert home.run() == []


def test_what_another_writer_stored_with_an_older_id_is_found(
    mongodb_server, home, make_trajectory
):
    mongodb_server.store(make_trajectory(1))
    assert home.run() == ["task 1"] * 2
    late = bson.ObjectId.from_datetime(datetime.now(UTC) - timedelta(minutes=2))
    mongodb_server.store(make_trajectory(2), identity=late)
    old = bson.ObjectId.from_datetime(datetime.now(UTC) - timedelta(hours=2))
    mongodb_server.store(make_trajectory(3), identity=old)
    assert home.run() == ["task 2"] * 2  # the one of two hours ago is not asked for
    assert mongodb_server.filters[-1]["_id"]["$gte"] > old


def test_a_server_that_is_gone_is_named(mongodb_server, home, monkeypatch):
    monkeypatch.setattr(
        "infrastructure.trajectories.record_source.databases.mongodb_collection._MILLISECONDS", 100
    )
    mongodb_server.close()
    with pytest.raises(SourceServerError, match=r"genesis_replay_buffer\.trajectories of mongodb"):
        home.run()


def test_a_url_with_a_wrong_port_is_named():
    collection = MongoDBCollection("mongodb://localhost:99999", "genesis", "trajectories")
    with pytest.raises(SourceServerError, match="Port must be"):
        list(collection.after(""))
