"""An agent's folder: last pre-flight report, last training; a copy for measurements."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from pydantic import ValidationError

from genesis_fp16.domain.last_training import LastTraining
from genesis_fp16.plugins.model_versions import VERSIONS
from infrastructure.events.preflight_report import PreflightReport
from infrastructure.files import open_regular, write_atomically

_PREFLIGHT = "preflight.json"
_LAST_TRAINING = "last-training.json"
_REPLAY = "replay"
_LONGEST_REPORT = 1 << 20  # bytes


def write_preflight(agent_folder: Path, report: PreflightReport) -> None:
    """Write *report* over the agent's previous one.

    Raises:
        OSError: The file cannot be written.
    """
    write_atomically(agent_folder / _PREFLIGHT, report.model_dump_json(indent=2))


def read_preflight(agent_folder: Path) -> PreflightReport | None:
    """The agent's last report; None if there is none, or this version cannot read it."""
    try:
        return PreflightReport.model_validate_json(_read(agent_folder / _PREFLIGHT))
    except (OSError, ValidationError):
        return None


def write_last_training(agent_folder: Path, last: LastTraining) -> None:
    """Write *last* over what is known of the training before.

    Raises:
        OSError: The file cannot be written.
    """
    write_atomically(agent_folder / _LAST_TRAINING, last.model_dump_json(indent=2))


def read_last_training(agent_folder: Path) -> LastTraining | None:
    """The agent's last training; None if there was none, or this version cannot read it."""
    try:
        return LastTraining.model_validate_json(_read(agent_folder / _LAST_TRAINING))
    except (OSError, ValidationError):
        return None


def _read(path: Path) -> bytes:
    """The start of a regular file, of more bytes than a report has.

    The daemon reads what a worker may have replaced: a pipe must not make it wait, nor a huge file
    fill its memory.
    """
    with open_regular(path) as file:
        return file.read(_LONGEST_REPORT)


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
