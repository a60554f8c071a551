"""Whether the object store can be written, listed, read and deleted from this machine."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator

from genesis_fp16.executors.remote.engine import Finding
from genesis_fp16.system.object_store import ObjectStore, ObjectStoreError

_CONTENT = b"genesis-fp16"


def check_store(store: ObjectStore) -> Iterator[Finding]:
    """Write, list, read and delete one object, and say how long that took."""
    folder = f"checks/{secrets.token_hex(4)}"
    name, step, began = f"{folder}/probe", "written", time.monotonic()
    try:
        store.write(name, _CONTENT)
        step = "listed"
        if store.names(folder) != [name]:
            raise ObjectStoreError("a new object is not in the list")
        step = "read"
        if store.read(name) != _CONTENT:
            raise ObjectStoreError("a new object has other content")
        step = "deleted"
        store.delete([name])
        step = "read as missing after its deletion"
        if store.read(name) is not None:
            raise ObjectStoreError("it is still there")
    except ObjectStoreError as error:
        yield Finding(
            ok=False,
            what=f"{store.url}: an object cannot be {step}: {error}",
            remedy="see GENESIS_SHARED_URL, the rights get, put, list and delete of the "
            "credentials in the environment, and the network; docs/how-to/object-store.md",
        )
        return
    seconds = time.monotonic() - began
    yield Finding(ok=True, what=f"{store.url} takes, lists and deletes objects: {seconds:.1f} s")
