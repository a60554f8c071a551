"""Agents described by a file: its form, and the records that such an agent reads from a folder.

`definition` is the file; `formats` decodes records; `folder` finds those not read before.
"""

from infrastructure.trajectories.record_source.definition import (
    AgentDefinition,
    DefinitionError,
    read_definition,
)
from infrastructure.trajectories.record_source.source import RecordSource, SourceFolderError

__all__ = [
    "AgentDefinition",
    "DefinitionError",
    "RecordSource",
    "SourceFolderError",
    "read_definition",
]
