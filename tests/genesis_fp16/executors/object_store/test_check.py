"""Objects of a real server, and what a person is told when it cannot be used."""

from pathlib import Path

import pytest

from genesis_fp16.executors.object_store.check import check_store
from genesis_fp16.system.object_store import ObjectStore, ObjectStoreError
from tests.genesis_fp16.executors.object_server import ObjectServer
from tests.patience import wait_until


def test_an_object_is_whole_listed_and_deleted(store: ObjectStore, tmp_path: Path) -> None:
    assert store.read("a/1") is None
    store.write("a/1", b"one")
    assert store.read("a/1") == b"one", "a missing answer was kept"
    path = tmp_path / "large"
    path.write_bytes(b"x" * (6 << 20))  # more than one part of a transfer
    store.upload(path, "a/2")
    store.download("a/2", tmp_path / "back", 6 << 20)
    assert (tmp_path / "back").read_bytes() == path.read_bytes()
    with pytest.raises(ObjectStoreError, match="instead of"):
        store.download("a/2", tmp_path / "back", 7)
    assert sorted(store.names("a")) == ["a/1", "a/2"]
    store.delete(["a/1", "a/none"])
    assert store.names() == ["a/2"]
    store.delete_all("a")
    assert store.names() == []


def test_what_cannot_be_deleted_is_named(store: ObjectStore) -> None:
    store._call("pipe_file", f"{store._path('a')}/folder/", b"")  # as the console of S3 makes one
    store.write("a/1", b"one")
    with pytest.raises(ObjectStoreError, match="a/folder/' is still there"):
        store.delete_all("a")
    assert store.read("a/1") is None


def test_the_check_uses_every_right_and_leaves_nothing(store: ObjectStore) -> None:
    assert [finding.ok for finding in check_store(store)] == [True]
    assert store.names() == []


def test_a_wrong_key_is_found_and_not_shown(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2-hunter2")
    [finding] = check_store(ObjectStore(store.url))
    assert not finding.ok
    assert "cannot be written" in finding.what
    assert "signature" in finding.what
    assert "credentials" in finding.remedy
    assert "hunter2" not in finding.what + finding.remedy


def test_a_bucket_that_is_not_there_is_found(store: ObjectStore) -> None:
    [finding] = check_store(ObjectStore("s3://nowhere/x"))
    assert not finding.ok
    assert "s3://nowhere/x" in finding.what


def test_a_server_that_says_nothing_costs_seconds(
    store: ObjectStore, object_server: ObjectServer
) -> None:
    quick = ObjectStore(store.url, seconds=1.0)

    def answers() -> bool:  # on a crowded machine its first connection takes longer
        try:
            quick.write("a", b"here")
        except ObjectStoreError:
            return False
        return True

    wait_until(answers, "the first answer", idle_seconds=30.0)
    with object_server.silent(), pytest.raises(ObjectStoreError, match="not answered within 1 s"):
        quick.read("a")
    wait_until(answers, "an answer again", idle_seconds=30.0)
    assert store.read("a") == b"here"
