"""The collection of MongoDB in which Genesis' replay buffer keeps its trajectories."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from infrastructure.trajectories.record_source.databases.entries import (
    Entry,
    MissingDriverError,
    SourceServerError,
    read_password,
)

_OVERLAP = timedelta(minutes=5)
"""Ids of several writers are ordered by second only, and clocks differ: so much is read again."""
_MILLISECONDS = 5000  # to find a server, to connect, and for an answer


class MongoDBCollection:
    """Documents of one collection by ``_id``.

    Raises:
        MissingDriverError: The extra ``mongodb`` is not installed.
    """

    def __init__(
        self, url: str, database: str, collection: str, password_file: Path | None = None
    ) -> None:
        try:
            import pymongo
            from bson import ObjectId
            from pymongo.errors import PyMongoError
        except ImportError:
            raise MissingDriverError("mongodb") from None
        self.place = f"the collection {database}.{collection} of {url}"
        self._object_id, self._errors = ObjectId, PyMongoError
        self._url, self._client, self._name = url, pymongo.MongoClient, (database, collection)
        self._options: dict[str, Any] = {
            "serverSelectionTimeoutMS": _MILLISECONDS,
            "connectTimeoutMS": _MILLISECONDS,
            "socketTimeoutMS": _MILLISECONDS,
        }
        if (password := read_password(password_file)) is not None:
            self._options["password"] = password

    def after(self, cursor: str) -> Iterator[Entry]:
        """See `Entries.after`; what is younger than some minutes before *cursor* is read again."""
        wanted: dict[str, Any] = {}
        if self._object_id.is_valid(cursor):
            begin = self._object_id(cursor).generation_time - _OVERLAP
            wanted = {"_id": {"$gte": self._object_id.from_datetime(begin)}}
        database, collection = self._name
        with self._asking(), self._client(self._url, **self._options) as client:
            for document in client[database][collection].find(wanted).sort("_id", 1):
                identity = document.pop("_id", None)
                content = json.dumps(document, default=str).encode()
                yield Entry(cursor=str(identity), content=content)

    def lost_since(self, cursor: str, read: int) -> tuple[int, int]:
        """See `Entries.lost_since`; unknown for a collection."""
        del cursor, read
        return 0, 0

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except (self._errors, OSError, ValueError) as error:  # the last: a wrong port
            raise SourceServerError(self.place, error) from error
