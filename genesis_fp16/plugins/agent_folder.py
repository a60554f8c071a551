"""An agent's folder: its last pre-flight report; a copy of the folder for measurements."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from genesis_fp16.plugins.model_versions import VERSIONS
from infrastructure.events.preflight_report import PreflightReport
from infrastructure.files import JsonFileError, read_model, write_model

_PREFLIGHT = "preflight.json"
_REPLAY = "replay"
_MOST_REPORT_BYTES = 1 << 20


def write_preflight(agent_folder: Path, report: PreflightReport) -> None:
    """Write *report* over the agent's previous one.

    Raises:
        OSError: The file cannot be written.
    """
    write_model(agent_folder / _PREFLIGHT, report, indent=2)


def read_preflight(agent_folder: Path) -> PreflightReport | None:
    """The agent's last report; None if there is none, or this version cannot read it."""
    try:
        return read_model(agent_folder / _PREFLIGHT, PreflightReport, limit=_MOST_REPORT_BYTES)
    except (OSError, JsonFileError):
        return None


def copy_agent_folder(source: Path, target: Path) -> None:
    """Copy an agent's folder to *target*, where a measurement may write as it likes.

    The kept versions of its model are left out.

    Segments of the replay buffer, which nobody changes once they are written, are hard links where
    the file system allows it, so that the copy takes little room.

    Raises:
        OSError: Copying failed, for example for lack of room.
    """
    target.mkdir(parents=True)
    if source.is_dir():
        shutil.copytree(
            source,
            target,
            ignore=lambda folder, _names: [VERSIONS] if Path(folder) == source else [],
            copy_function=_link_or_copy,
            dirs_exist_ok=True,
        )


def _link_or_copy(source: str, target: str) -> None:
    if Path(source).parent.name == _REPLAY:
        try:
            os.link(source, target)
        except OSError:  # another file system, or one without links
            shutil.copyfile(source, target)
    else:
        shutil.copyfile(source, target)
