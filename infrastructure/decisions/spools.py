"""Removes a group's reports from the spools of clients on this machine.

`genesis_client.spool` describes the files. One that a running client has locked is left alone: the
client sends its reports soon, and the next removal finds them in the log.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SPOOLS = Path("genesis-client")  # in a user's folder for state
_STATE = Path(".local", "state")
_BATCHED = (b"choices", b"transitions")


@dataclass(kw_only=True, slots=True)
class RemovedReports:
    """What was removed from spools, and where reports of the group are left.

    Attributes:
        removed: Number of reports that were removed.
        in_use: Files with such reports that running clients have locked.
        of_others: Files with such reports for an agent of this name at another address.
        unreadable: Folders and files that this user may not read, or not write.
    """

    removed: int = 0
    in_use: list[str] = field(default_factory=list)
    of_others: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


def remove_from_spools(agent: str, socket: Path, group: str, decisions: set[str]) -> RemovedReports:
    """Remove the reports of *group* that wait for the predictor of *socket*.

    Searched are the spools in ``~/.local/state`` of this user and of all others whose home can be
    read; not those that an agent, or ``XDG_STATE_HOME``, has put elsewhere.

    Args:
        agent: Name of the agent.
        socket: Path of the predictor's Unix socket.
        decisions: Ids of the group's decisions in the log, whose outcomes may wait.
    """
    found = RemovedReports()
    ours = {_folder_name(agent, path) for path in (socket.absolute(), socket.resolve())}
    name = re.compile(re.escape(agent) + "-[0-9a-f]{8}")
    for state in _state_folders():
        try:
            if not (state / SPOOLS).is_dir():
                continue
            folders = [entry for entry in (state / SPOOLS).iterdir() if name.fullmatch(entry.name)]
            files = [path for folder in folders for path in sorted(folder.glob("*.spool"))]
        except PermissionError:
            found.unreadable.append(str(state / SPOOLS))
            continue
        for path in files:
            try:
                _remove_from(path, group, set(decisions), found, path.parent.name in ours)
            except FileNotFoundError:
                continue
            except OSError:
                found.unreadable.append(str(path))
    return found


def _remove_from(
    path: Path, group: str, decisions: set[str], found: RemovedReports, is_ours: bool
) -> None:
    flags = os.O_RDWR if is_ours else os.O_RDONLY
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        is_locked = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_locked = False
        with open(descriptor, "rb", closefd=False) as lines:
            spans = list(_spans(lines, group, decisions))
        if not spans:
            return
        if not is_ours:
            found.of_others.append(str(path))
        elif not is_locked:
            found.in_use.append(str(path))
        else:
            for offset, length in spans:
                os.pwrite(descriptor, b" " * length, offset)
            os.fsync(descriptor)
            found.removed += len(spans)
    finally:
        os.close(descriptor)


def _spans(lines: Iterator[bytes], group: str, decisions: set[str]) -> Iterator[tuple[int, int]]:
    """Offset and length, without its end, of each line with a report of *group*."""
    offset = 0
    for line in lines:
        content = line.rstrip(b"\n")
        _, _, rest = content.partition(b" ")
        tail, _, report = rest.partition(b" ")
        if _is_of_group(tail, report, group, decisions):
            yield offset, len(content)
        offset += len(line)


def _is_of_group(tail: bytes, report: bytes, group: str, decisions: set[str]) -> bool:
    """Whether a report is of *group*; adds the id of a choice to *decisions*."""
    if tail not in _BATCHED:
        parts = tail.decode("latin-1").split("/")
        return len(parts) == 3 and parts[1] in decisions
    try:
        fields = json.loads(report)
        is_of_group = bool((fields.get("group") or fields.get("id")) == group)
    except (ValueError, AttributeError):
        return False  # damaged: the client leaves it out, too
    if is_of_group:
        decisions.add(str(fields.get("id")))
    return is_of_group


def _state_folders() -> Iterator[Path]:
    """Folders for state of this user and of all others, where no variable has moved them."""
    homes = [str(Path.home()), *(entry.pw_dir for entry in pwd.getpwall())]
    yield from dict.fromkeys(Path(home) / _STATE for home in homes if home not in ("", "/"))


def _folder_name(agent: str, socket: Path) -> str:
    """Name of the folder in which clients keep reports for *socket*."""
    return f"{agent}-{zlib.crc32(os.fsencode(socket)):08x}"
