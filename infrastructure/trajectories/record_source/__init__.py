"""Agents described by a file: the file's content, and the records that are read from a folder.

`definition` reads the file; `proposal` proposes one from a sample of records; `formats` decodes
records; `lines` says what a file may hold; `source` reads the files of a folder and `databases` a
server, `collection` for a run; `new_records` tells which are new; `positions` remembers how far
each file was read; `report` tells the result.
"""

from infrastructure.trajectories.record_source.collection import collect_records
from infrastructure.trajectories.record_source.databases import DatabaseSource, SourceServerError
from infrastructure.trajectories.record_source.definition import (
    AgentDefinition,
    DefinitionError,
    read_definition,
)
from infrastructure.trajectories.record_source.formats import DecodedRecord
from infrastructure.trajectories.record_source.source import RecordSource, SourceFolderError

__all__ = [
    "AgentDefinition",
    "DatabaseSource",
    "DecodedRecord",
    "DefinitionError",
    "RecordSource",
    "SourceFolderError",
    "SourceServerError",
    "collect_records",
    "read_definition",
]
