"""Names and content of the objects in the bucket."""

from __future__ import annotations

import re
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from genesis_fp16.plugins.model_versions import FileFacts, ModelVersion
from infrastructure.agent_contract.agent import AGENT_NAME

PLACE = "predictors"  # below the URL
MANIFEST, OUTCOMES = "models.json", "outcomes"
FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
SERVER = re.compile(r"[0-9a-f]{16}")
_CHUNK = re.compile(
    rf"{OUTCOMES}/(?P<server>{SERVER.pattern})/(?P<agent>{AGENT_NAME.pattern})"
    r"/(?P<segment>\d{8})-(?P<offset>\d{12})\.ndjson"
)


class SharedModel(BaseModel):
    """The published model of an agent.

    Attributes:
        place: Folder of its files in the bucket.
        files: Name to the facts of each file of ``published/``, in the order of writing.
        version: Version whose files these are; None if it is not recorded.
    """

    model_config = ConfigDict(frozen=True)
    place: Annotated[str, Field(pattern=r"^models/[0-9a-z-]+/[0-9a-f]{16}$")]
    files: dict[Annotated[str, Field(pattern=f"^{FILE.pattern}$")], FileFacts]
    version: ModelVersion | None = None


class Manifest(BaseModel):
    """All published models, by agent."""

    model_config = ConfigDict(frozen=True)
    format: Literal[1] = 1
    agents: dict[Annotated[str, Field(pattern=f"^{AGENT_NAME.pattern}$")], SharedModel] = {}


class Chunk(NamedTuple):
    """Whole lines of a server's log of an agent, from an offset of a segment on."""

    server: str
    agent: str
    segment: int
    offset: int

    @property
    def name(self) -> str:
        """Name of the object."""
        file = f"{self.segment:08d}-{self.offset:012d}.ndjson"
        return f"{OUTCOMES}/{self.server}/{self.agent}/{file}"

    @classmethod
    def parse(cls, name: str) -> Chunk | None:
        """The chunk of the object *name*; None if it is none."""
        found = _CHUNK.fullmatch(name)
        if found is None:
            return None
        segment, offset = int(found["segment"]), int(found["offset"])
        return cls(found["server"], found["agent"], segment, offset)
