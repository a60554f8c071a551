"""Records that Genesis' replay buffer keeps in Redis or MongoDB, read where they are.

`database_source` decides what is new and how far it was read; `redis_stream` and
`mongodb_collection` ask the servers, each by its extra.
"""

from infrastructure.trajectories.record_source.databases.database_source import (
    DatabaseSource,
    SourceServerError,
)

__all__ = ["DatabaseSource", "SourceServerError"]
