"""The last pre-flight report, a file in the agent's folder."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from infrastructure.events.preflight_report import PreflightReport
from infrastructure.files import write_atomically

_PREFLIGHT = "preflight.json"


def write_preflight(agent_folder: Path, report: PreflightReport) -> None:
    """Write *report* over the agent's previous one.

    Raises:
        OSError: The file cannot be written.
    """
    write_atomically(agent_folder / _PREFLIGHT, report.model_dump_json(indent=2))


def read_preflight(agent_folder: Path) -> PreflightReport | None:
    """The agent's last report; None if there is none, or this version cannot read it."""
    try:
        return PreflightReport.model_validate_json((agent_folder / _PREFLIGHT).read_bytes())
    except (OSError, ValidationError):
        return None
