"""Whole objects in a bucket that an fsspec URL names: written once, read, listed, deleted.

Every request has a deadline, so that storage that does not answer costs its caller seconds. No
listing, and no answer that an object is missing, is kept from one call to the next.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

REQUEST_SECONDS = 10.0
SLOWEST_BYTES = 1 << 20  # a second, for the deadline of a file
EXTRA = "genesis-fp16[storage]"
_AT_ONCE = 200  # objects that one call deletes
_LONGEST_READ = 1 << 28  # bytes of an object that is read into memory
_LONGEST_ERROR = 300
_LOCAL = ("file", "local", "asynclocal", "memory")
_BLOCKING = (
    "ftp",
    "sftp",
    "ssh",
    "smb",
    "webhdfs",
    "hdfs",
    "arrow_hdfs",
    "webdav",
    "dropbox",
    "hf",
)
_CONNECTIONS = {  # of botocore: each request has our own deadline besides
    "connect_timeout": 5,
    "read_timeout": REQUEST_SECONDS,
    "max_pool_connections": 64,
    "retries": {"max_attempts": 1},
}
_OPTIONS = {"s3": {"config_kwargs": _CONNECTIONS}, "s3a": {"config_kwargs": _CONNECTIONS}}
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")


class BucketError(OSError):
    """The bucket refused a request, did not answer, or cannot be used: what, and the remedy.

    Args:
        message: Contains no credential.
    """


class Bucket:
    """Objects below *url*, by names with slashes. Nothing is imported or connected before a call.

    Credentials, and the address of a service that is not the vendor's own, come from the
    environment, as the file system's package reads them. Methods are safe in several threads.

    Args:
        url: fsspec URL of a bucket and a prefix in it; see `check_bucket_url`.
        seconds: Longest time for one request, without that for the bytes of a file.
    """

    def __init__(self, url: str, seconds: float = REQUEST_SECONDS) -> None:
        self.url, self._seconds = url.rstrip("/"), seconds

    def below(self, name: str) -> Bucket:
        """The bucket of the objects below *name*."""
        return Bucket(f"{self.url}/{name}", self._seconds)

    def read(self, name: str) -> bytes | None:
        """Content of the object; None if it does not exist.

        Raises:
            BucketError: The bucket refused, or did not answer; or the object is longer than
                256 MiB.
        """
        try:
            content = self._call("cat_file", self._path(name), start=0, end=_LONGEST_READ + 1)
        except FileNotFoundError:
            return None
        if len(content) > _LONGEST_READ:
            raise BucketError(f"{self.url}/{name} has more than {_LONGEST_READ >> 20} MiB")
        return bytes(content)

    def write(self, name: str, content: bytes) -> None:
        """Write the object *name* whole.

        Raises:
            BucketError: The bucket refused, or did not answer.
        """
        try:
            self._call("pipe_file", self._path(name), content)
        except FileNotFoundError as error:
            raise self._no_bucket(error) from error

    def upload(self, path: Path, name: str) -> None:
        """Write the file at *path* as the object *name*.

        Raises:
            BucketError: The bucket refused, or did not answer.
            OSError: The file cannot be read.
        """
        size = path.stat().st_size
        try:
            self._call("put_file", str(path), self._path(name), longer=size / SLOWEST_BYTES)
        except FileNotFoundError as error:
            if not path.exists():
                raise
            raise self._no_bucket(error) from error

    def download(self, name: str, path: Path, size: int) -> None:
        """Write the object *name*, of *size* bytes, to the file at *path*.

        Raises:
            FileNotFoundError: It does not exist.
            BucketError: The bucket refused, did not answer, or sent another size.
        """
        self._call("get_file", self._path(name), str(path), longer=size / SLOWEST_BYTES)
        if (received := path.stat().st_size) != size:
            raise BucketError(f"{self.url}/{name} has {received} bytes instead of {size}")

    def names(self, prefix: str = "") -> list[str]:
        """Names of the objects below the folder *prefix*, relative to the bucket, in no order.

        Raises:
            BucketError: The bucket refused, or did not answer.
        """
        try:
            listed = self._call("find", self._path(prefix))
        except FileNotFoundError:
            return []
        root, inside = self._path("") + "/", self._path(prefix) + "/"
        names = (name.lstrip("/") for name in listed)  # some file systems add the folder itself
        return [name.removeprefix(root) for name in names if name.startswith(inside)]

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; one may be gone already.

        Raises:
            BucketError: The bucket refused, or did not answer.
        """
        for name in names:
            try:
                self._call("rm_file", self._path(name))
            except FileNotFoundError:
                continue

    def delete_all(self, prefix: str) -> None:
        """Delete every object below the folder *prefix*.

        Raises:
            BucketError: The bucket refused, did not answer, or keeps what it should delete.
        """
        deleted: set[str] = set()
        while names := self.names(prefix)[:_AT_ONCE]:
            if kept := deleted.intersection(names):
                name = ascii(min(kept))
                raise BucketError(f"{self.url}: {name} is still there after its deletion")
            self.delete(names)
            deleted.update(names)

    def _no_bucket(self, error: FileNotFoundError) -> BucketError:
        return BucketError(f"{self.url}: {error}; create the bucket")

    def _path(self, name: str) -> str:
        return f"{self._opened[1]}/{name}".rstrip("/")

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        """The file system, and the path of the URL in it."""
        scheme = urlsplit(self.url).scheme
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise BucketError(f"fsspec is not installed; pip install '{EXTRA}'") from error
        try:
            options = _OPTIONS.get(scheme, {})
            system, path = url_to_fs(
                self.url, skip_instance_cache=True, use_listings_cache=False, **options
            )
        except (ImportError, ValueError) as error:
            remedy = f"install the file system's package; for s3 pip install '{EXTRA}'"
            raise BucketError(f"{self.url} cannot be opened: {error}; {remedy}") from error
        except Exception as error:  # of any kind: some connect at once, or need more than a URL
            raise BucketError(f"{self.url} cannot be opened: {_words(error)}") from error
        if not system.async_impl:
            raise BucketError(f"{self.url} cannot be used: {_blocks(scheme)}")
        return system, path.strip("/")

    def _call(self, name: str, *arguments: Any, longer: float = 0.0, **more: int) -> Any:  # noqa: ANN401 -- fsspec has no types
        system, _ = self._opened
        seconds = self._seconds + longer
        try:
            from fsspec.asyn import sync

            call = partial(getattr(system, f"_{name}"), *arguments, **more)
            return sync(system.loop, _bounded, call, seconds)
        except FileNotFoundError:
            raise
        except TimeoutError as error:
            raise BucketError(
                f"{self.url} has not answered within {seconds:.0f} s; see its network and its load"
            ) from error
        except Exception as error:  # of any kind: each file system has errors of its own
            raise BucketError(f"{self.url}: {_words(error)}") from error


async def _bounded(call: Callable[[], Any], seconds: float) -> Any:  # noqa: ANN401
    return await asyncio.wait_for(call(), seconds)


def check_bucket_url(url: str) -> str:
    """Return *url* if it can name a bucket and carries no credential.

    Raises:
        ValueError: It names none, a folder of one machine, or a user; the message does not
            repeat it.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ValueError("it is not a URL") from error
    is_url = url.startswith(f"{parts.scheme}://") and _SCHEME.fullmatch(parts.scheme)
    if not is_url or not parts.netloc or not url.isprintable() or "::" in url:
        raise ValueError("it is not the URL of a bucket, for example s3://bucket/prefix")
    if parts.scheme in _LOCAL:
        raise ValueError("a folder is not named here: put GENESIS_HOME on the shared folder")
    if parts.scheme in _BLOCKING:
        raise ValueError(f"it cannot be used: {_blocks(parts.scheme)}")
    if not {"@", ":", "%"}.isdisjoint(parts.netloc) or parts.query or parts.fragment:
        raise ValueError(
            "it must end after its path and name no user: credentials come from the environment, "
            "as the file system's package reads them"
        )
    return url


def _blocks(scheme: str) -> str:
    return (
        f"the file system of {scheme}:// is not asynchronous, so that a request to it would have "
        "no deadline; name a bucket, for example s3://, gs:// or abfs://"
    )


def _words(error: Exception) -> str:
    """What *error* says, in one line."""
    text = " ".join(str(error).split()) or repr(error)
    return f"{type(error).__name__}: {text}"[:_LONGEST_ERROR]
