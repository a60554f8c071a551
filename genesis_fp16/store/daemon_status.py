"""Status that a daemon publishes, beside the lock it holds, to commands on the same machine."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from genesis_fp16.domain.precision import Device
from genesis_fp16.settings import AgentSettings, Settings, hot_fields, variable_name
from genesis_fp16.system.disk import is_full
from infrastructure.events.plain_text import plain

LOCK_FILE, STATUS_FILE = "daemon.lock", "daemon.json"
STARTING = "starting"
NO_ROOM = "the disk of GENESIS_HOME is full, and the status cannot be written; free space there"


class DaemonStatus(BaseModel):
    """Status of a daemon; all empty until it publishes one.

    Attributes:
        pid, host, since: Process, machine, and start in Unix seconds.
        trouble: Why the daemon is not ready; empty if it is.
        env_file: Absolute path of the settings file that it follows.
        refused: Why it refused that file's content and keeps its previous settings; else empty.
        scanned_at: Unix time at which the last look at the installed agents began whose probes have
            ended, 0 before the first; None if the process does not look for changes.
        probing: Agents whose probe takes long, to its start in Unix seconds.
        hot: Hot fields of its `Settings`, with the values in force.
        sources: Where those are set, by variable; defaults are left out.
        device: Device that it trains on; None until it is known.
    """

    model_config = ConfigDict(frozen=True)

    pid: int | None = None
    host: str = ""
    since: float = 0.0
    trouble: str = STARTING
    env_file: str = ""
    refused: str = ""
    scanned_at: float | None = None
    probing: dict[str, float] = {}
    hot: dict[str, JsonValue] = {}
    sources: dict[str, str] = {}
    device: Device | None = None

    def __str__(self) -> str:
        if self.pid is None:
            full = self.trouble == NO_ROOM
            return "status unknown: the disk is full" if full else "its process is not known yet"
        since = datetime.fromtimestamp(self.since, UTC)
        return f"pid {self.pid} on {self.host} since {since:%Y-%m-%dT%H:%M:%SZ}"

    def with_settings(
        self,
        settings: Settings,
        *,
        trouble: str,
        refused: str,
        scanned_at: float | None = None,
        probing: Mapping[str, float] = {},
        device: Device | None = None,
    ) -> DaemonStatus:
        """The same daemon with the hot settings of *settings* in force; none of them is secret."""
        names, of_agent = hot_fields(Settings), set(hot_fields(AgentSettings))
        hot = settings.model_dump(mode="json", include=set(names))
        hot["agents"] = {
            key: agent_settings.model_dump(mode="json", include=of_agent)
            for key, agent_settings in settings.agents.items()
        }
        sources = {variable_name(name): plain(settings.source_of(name)) for name in names}
        return self.model_copy(
            update={
                "env_file": plain(str(settings.env_file.absolute())),
                "trouble": plain(trouble),
                "refused": plain(refused),
                "scanned_at": scanned_at,
                "probing": dict(probing),
                "device": device,
                "hot": hot,
                "sources": {
                    name: source for name, source in sources.items() if source != "default"
                },
            }
        )

    def settings_in_force(self, local: Settings) -> Settings | None:
        """*local* with the hot settings that the daemon follows; None if it published none."""
        if not self.hot:
            return None
        try:
            return local.with_hot_settings_of(Settings.model_validate(self.hot))
        except ValidationError:  # of another release
            return None


def find_daemon(home: Path) -> DaemonStatus | None:
    """Status of the daemon, or foreground ``run``, that holds the lock of *home*; else None."""
    if not _is_locked(home / LOCK_FILE):
        return None
    status = read_status(home)
    return DaemonStatus(trouble=NO_ROOM) if status.pid is None and is_full(home) else status


def read_status(home: Path) -> DaemonStatus:
    """Status published last in *home*, perhaps by a daemon that has ended."""
    return parse_status(read_status_bytes(home))


def read_status_bytes(home: Path) -> bytes:
    """What `parse_status` parses; empty without a status."""
    try:
        return (home / STATUS_FILE).read_bytes()
    except OSError:
        return b""


def parse_status(content: bytes) -> DaemonStatus:
    """Status with that *content*; an empty one if it is damaged or empty."""
    try:
        return DaemonStatus.model_validate_json(content)
    except ValidationError:
        return DaemonStatus()


def _is_locked(path: Path) -> bool:
    """Whether another process has locked the file; checking leaves no trace."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:  # then the database beside it cannot be used either
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
