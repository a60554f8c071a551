"""Small files of agents and runs, written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import ValidationError

from infrastructure.events.preflight_report import PreflightReport

_PREFLIGHT = "preflight.json"


def write_whole(path: Path, text: str) -> None:
    """Write *path* so that a reader sees all of it or nothing, even after a power cut."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def write_preflight(agent_folder: Path, report: PreflightReport) -> None:
    """Keep *report* as the agent's last.

    Raises:
        OSError: The disk refused.
    """
    write_whole(agent_folder / _PREFLIGHT, report.model_dump_json(indent=2))


def read_preflight(agent_folder: Path) -> PreflightReport | None:
    """The agent's last report; None if there is none that this version can read."""
    try:
        return PreflightReport.model_validate_json((agent_folder / _PREFLIGHT).read_bytes())
    except (OSError, ValidationError):
        return None
