"""Whether the bucket can be written, listed, read and deleted from this machine."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator

from genesis_fp16.executors.remote.engine import Finding
from genesis_fp16.system.bucket import Bucket, BucketError

_CONTENT = b"genesis-fp16"


def check_bucket(bucket: Bucket) -> Iterator[Finding]:
    """Write, list, read and delete one object, and say how long that took."""
    folder = f"checks/{secrets.token_hex(4)}"
    name, step, began = f"{folder}/probe", "written", time.monotonic()
    try:
        bucket.write(name, _CONTENT)
        step = "listed"
        if bucket.names(folder) != [name]:
            raise BucketError("a new object is not in the list")
        step = "read"
        if bucket.read(name) != _CONTENT:
            raise BucketError("a new object has other content")
        step = "deleted"
        bucket.delete([name])
        step = "read as missing after its deletion"
        if bucket.read(name) is not None:
            raise BucketError("it is still there")
    except BucketError as error:
        yield Finding(
            ok=False,
            what=f"{bucket.url}: an object cannot be {step}: {error}",
            remedy="see GENESIS_SHARED_URL, the rights get, put, list and delete of the "
            "credentials in the environment, and the network; docs/how-to/bucket.md",
        )
        return
    seconds = time.monotonic() - began
    yield Finding(ok=True, what=f"{bucket.url} takes, lists and deletes objects: {seconds:.1f} s")
