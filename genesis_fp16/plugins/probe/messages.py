"""What parent and probe tell each other, as JSON."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, JsonValue

from infrastructure.agent_contract import Schedule
from infrastructure.events.plain_text import PlainText


class ProbeRequest(BaseModel):
    """Request on the probe's stdin; not in its arguments, since settings may hold secrets.

    Attributes:
        root: Folder below which the plugin's module must lie; None if unknown.
        definition: File that describes a configured agent; None for an installed one.
        settings: The operator's settings for the agent.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    root: Path | None = None
    definition: Path | None = None
    settings: dict[str, JsonValue] = {}


class ProbeAnswer(BaseModel):
    """Result of a probe.

    Attributes:
        reason: Why the agent cannot be used, in one line; empty if it is ready.
        detail: Traceback, if there is one.
        schedule: The agent's default.
        settings_schema: JSON schema of its settings; None if it takes none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    reason: PlainText = ""
    detail: PlainText = ""
    schedule: Schedule | None = None
    settings_schema: dict[str, JsonValue] | None = None
