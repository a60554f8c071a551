"""Which URLs name a bucket, and what a bucket says that cannot be used."""

import pytest

from genesis_fp16.system.bucket import Bucket, BucketError, check_bucket_url


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/a/prefix", "gs://bucket/x"])
def test_a_bucket_is_named(url: str) -> None:
    assert check_bucket_url(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "s3://user:hunter2@bucket/x",
        "s3://KEY:hunter2:bucket/x",
        "s3://KEY:hunter2",
        "s3://KEY%3Ahunter2%40bucket/x",
        "sftp://hunter2/x",
        "s3://hunter2@bucket",
        "s3://bucket/x?key=hunter2",
        "s3://bucket#hunter2",
        "file:///shared/hunter2",
        "/shared/hunter2",
        "s3:hunter2",
        "s3://",
        "s3://[hunter2",
        "S3://hunter2/x",
        "s3://hunter2/x\ny",
        "s3://hunter2::file:///x",
    ],
)
def test_what_is_no_store_or_holds_a_secret_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ValueError, match="it ") as refusal:
        check_bucket_url(url)
    assert "hunter2" not in str(refusal.value)


def test_a_missing_package_is_named() -> None:
    with pytest.raises(BucketError, match="install"):
        Bucket("gs://bucket").read("name")
    with pytest.raises(BucketError, match="nosuch"):
        Bucket("nosuch://bucket").read("name")


def test_a_file_system_whose_requests_have_no_deadline_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sftp:// is not asynchronous.* s3://"):
        check_bucket_url("sftp://host/x")
    with pytest.raises(BucketError, match=r"memory:// is not asynchronous.* s3://"):
        Bucket("memory://x").read("name")


@pytest.mark.parametrize("url", ["ftp://127.0.0.1:1/x", "github://a/b", "reference://a/b"])
def test_a_file_system_that_cannot_be_opened_is_named(url: str) -> None:
    with pytest.raises(BucketError, match="cannot be opened") as refusal:
        Bucket(url).read("name")
    assert url in str(refusal.value)
