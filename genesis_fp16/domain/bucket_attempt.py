"""The objects of an attempt whose machines share a bucket: their names, and what is in them.

All are below the name of the attempt's job. Each is written whole, once, by one side, and deleted
by the daemon:

``order``
    What the job is to do. It is written last of what the job needs; once it is gone, the attempt
    has lost its run, and its launcher kills the worker.
``inputs/N``
    Files of the daemon's home that the job begins with.
``commands/N``
    Commands in order, from 0: lines of `remote_attempt.COMMANDS_FILE`.
``starts/START``
    Each start of the job announces itself; an engine may start one twice.
``chosen``
    The one START that the daemon lets go on.
``updates/START/N``
    What that start has written, in order, from 0.
``files/START/N``
    Files that an update names.

Nobody depends on the order of a listing: a reader asks for the next number.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from pydantic import BaseModel, ConfigDict, Field

from genesis_fp16.domain.remote_attempt import FENCE_FILE, ORDER_FILE, JobOrder
from genesis_fp16.domain.run_spec import SPEC_FILE

ORDER, CHOSEN, STARTS = "order", "chosen", "starts"
LONGEST_INLINE = 1 << 16  # bytes of a file that travels within an update
MOST_INLINE = 1 << 24  # bytes of all such files of an update, or of the order
START_NAME = re.compile(r"[0-9a-f]{16}")  # of a start of a job
APPLIED_FILE = "stored.json"  # in the attempt's folder: how far its updates were applied
NOT_FROM_JOBS = (SPEC_FILE, ORDER_FILE, APPLIED_FILE, "commands.ndjson", "claim.json")
_DEEPEST = 100  # parts of the name of a file that a job sends: thousands take seconds


def command_name(number: int) -> str:
    """Name of a piece of the commands."""
    return f"commands/{number:08d}"


def update_name(start: str, number: int) -> str:
    """Name of an update."""
    return f"updates/{start}/{number:08d}"


class _Record(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="ignore", ser_json_bytes="base64", val_json_bytes="base64"
    )


def clamped_time(modified_ns: int) -> int:
    """*modified_ns* of a file as `BucketFile` takes it: a file may claim any year."""
    return min(max(0, modified_ns), 2**63 - 1)


class BucketFile(_Record):
    """One whole file.

    Attributes:
        path: Relative to the home.
        object: Name of the object that holds it; empty if *content* does.
        modified_ns: Unix time of its last change, in nanoseconds.
    """

    path: str
    object: str = Field("", pattern=r"^(inputs/[0-9]+-[0-9]+|files/[0-9a-f]{16}/[0-9]+)?$")
    content: bytes = b""
    size: int = Field(ge=0, lt=2**63)
    modified_ns: int = Field(ge=0, lt=2**63)


class BucketOrder(_Record):
    """What a job is to do, and with which files.

    Attributes:
        home: The daemon's home; paths of the specification are in it.
        spec: The `RunSpec` as JSON.
        order: As on a shared folder.
    """

    home: str
    spec: str
    order: JobOrder
    files: tuple[BucketFile, ...]


class Appended(_Record):
    """What a file has gained.

    Attributes:
        path: Relative to the home.
        offset: Its size before, in bytes.
    """

    path: str
    offset: int = Field(ge=0)
    content: bytes


class Update(_Record):
    """What a job has written since the update before.

    Attributes:
        beat: Whether its launcher lives.
        appended: To be applied first, and at once.
        written: In the order in which they were written.
        removed: Files that are gone, relative to the home.
    """

    beat: bool = False
    appended: tuple[Appended, ...] = ()
    written: tuple[BucketFile, ...] = ()
    removed: tuple[str, ...] = ()

    @property
    def has_files(self) -> bool:
        """Whether whole files changed."""
        return bool(self.written or self.removed)


class Applied(_Record):
    """How far the daemon has applied the updates of an attempt.

    Attributes:
        start: The start that was chosen.
        updates: Number of updates that are applied.
    """

    start: str
    updates: int = Field(0, ge=0)


def target_of(path: str, home: Path, attempt_folder: Path, agent_folder: Path) -> Path | None:
    """Where a job's file belongs in *home*; None if it may not write there.

    A job may write in its agent's folder, in its run's, and of attempts in its own alone, but not
    over what the daemon itself writes there, and not below hundreds of folders.
    """
    parts = PurePosixPath(path).parts
    if not 0 < len(parts) <= _DEEPEST or path.startswith("/") or ".." in parts or "\0" in path:
        return None
    target, run_folder = home.joinpath(*parts), attempt_folder.parents[1]
    if target.is_relative_to(attempt_folder):
        return None if target.parent == attempt_folder and target.name in NOT_FROM_JOBS else target
    if target == run_folder / FENCE_FILE or target.is_relative_to(run_folder / "attempts"):
        return None
    inside = target.is_relative_to(run_folder) or target.is_relative_to(agent_folder)
    return target if inside and target not in (run_folder, agent_folder) else None
