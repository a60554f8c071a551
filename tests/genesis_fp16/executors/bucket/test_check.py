"""Objects of a real server, and what a person is told when it cannot be used."""

from pathlib import Path

import pytest

from genesis_fp16.executors.bucket.check import check_bucket
from genesis_fp16.system.bucket import Bucket, BucketError
from tests.genesis_fp16.executors.object_server import ObjectServer
from tests.patience import wait_until


def test_an_object_is_whole_listed_and_deleted(bucket: Bucket, tmp_path: Path) -> None:
    assert bucket.read("a/1") is None
    bucket.write("a/1", b"one")
    assert bucket.read("a/1") == b"one", "a missing answer was kept"
    path = tmp_path / "large"
    path.write_bytes(b"x" * (6 << 20))  # more than one part of a transfer
    bucket.upload(path, "a/2")
    bucket.download("a/2", tmp_path / "back", 6 << 20)
    assert (tmp_path / "back").read_bytes() == path.read_bytes()
    with pytest.raises(BucketError, match="instead of"):
        bucket.download("a/2", tmp_path / "back", 7)
    assert sorted(bucket.names("a")) == ["a/1", "a/2"]
    bucket.delete(["a/1", "a/none"])
    assert bucket.names() == ["a/2"]
    bucket.delete_all("a")
    assert bucket.names() == []


def test_what_cannot_be_deleted_is_named(bucket: Bucket) -> None:
    bucket._call("pipe_file", f"{bucket._path('a')}/folder/", b"")  # as the console of S3 makes one
    bucket.write("a/1", b"one")
    with pytest.raises(BucketError, match="a/folder/' is still"):
        bucket.delete_all("a")
    assert bucket.read("a/1") is None


def test_the_check_uses_every_right_and_leaves_nothing(bucket: Bucket) -> None:
    assert [finding.ok for finding in check_bucket(bucket)] == [True]
    assert bucket.names() == []


def test_a_wrong_key_is_found_and_not_shown(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2-hunter2")
    [finding] = check_bucket(Bucket(bucket.url))
    assert not finding.ok
    assert "cannot be written" in finding.what
    assert "signature" in finding.what
    assert "credentials" in finding.remedy
    assert "hunter2" not in finding.what + finding.remedy


def test_a_bucket_that_is_not_there_is_found(bucket: Bucket) -> None:
    [finding] = check_bucket(Bucket("s3://nowhere/x"))
    assert not finding.ok
    assert "s3://nowhere/x" in finding.what


def test_a_server_that_says_nothing_costs_seconds(
    bucket: Bucket, object_server: ObjectServer
) -> None:
    quick = Bucket(bucket.url, seconds=1.0)

    def answers() -> bool:  # on a crowded machine its first connection takes longer
        try:
            quick.write("a", b"here")
        except BucketError:
            return False
        return True

    wait_until(answers, "the first answer", idle_seconds=30.0)
    with object_server.silent(), pytest.raises(BucketError, match="within 1 s"):
        quick.read("a")
    wait_until(answers, "an answer again", idle_seconds=30.0)
    assert bucket.read("a") == b"here"
