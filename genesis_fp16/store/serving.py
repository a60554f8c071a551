"""What a daemon says of itself, beside the lock it holds, to commands on the same machine."""

from __future__ import annotations

import fcntl
import os
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from genesis_fp16.settings import AgentSettings, Settings, hot_fields, variable_name
from infrastructure.events.plain_text import plain

LOCK_FILE, SERVING_FILE = "daemon.lock", "daemon.json"
STARTING = "starting"


class Serving(BaseModel):
    """A daemon, by its own word; all empty while it has not said anything yet.

    Attributes:
        pid, host, since: Who it is, and its start in Unix seconds.
        trouble: Why it is not ready; empty if it is.
        env_file: Absolute path of the settings file that it follows.
        refused: Why it refused that file's content and keeps what it had; empty if it did not.
        hot: Attributes of its `Settings` that can change live, as they are in force.
        sources: Where those come from, by variable; what is missing has its default.
    """

    model_config = ConfigDict(frozen=True)

    pid: int | None = None
    host: str = ""
    since: float = 0.0
    trouble: str = STARTING
    env_file: str = ""
    refused: str = ""
    hot: dict[str, JsonValue] = {}
    sources: dict[str, str] = {}

    def __str__(self) -> str:
        if self.pid is None:
            return "it has not said who it is yet"
        since = datetime.fromtimestamp(self.since, UTC)
        return f"pid {self.pid} on {self.host} since {since:%Y-%m-%dT%H:%M:%SZ}"

    def following(self, settings: Settings, *, trouble: str, refused: str) -> Serving:
        """The same daemon with the hot settings of *settings* in force; none of those is secret."""
        names, of_agent = hot_fields(Settings), set(hot_fields(AgentSettings))
        hot = settings.model_dump(mode="json", include=set(names))
        hot["agents"] = {
            key: own.model_dump(mode="json", include=of_agent)
            for key, own in settings.agents.items()
        }
        sources = {variable_name(name): plain(settings.source_of(name)) for name in names}
        return self.model_copy(
            update={
                "env_file": plain(str(settings.env_file.absolute())),
                "trouble": plain(trouble),
                "refused": plain(refused),
                "hot": hot,
                "sources": {name: found for name, found in sources.items() if found != "default"},
            }
        )

    def in_force(self, own: Settings) -> Settings | None:
        """*own* with the hot settings that the daemon follows; None if it has not said which."""
        if not self.hot:
            return None
        try:
            return own.with_hot_settings_of(Settings.model_validate(self.hot))
        except ValidationError:  # of another release
            return None


def serving(home: Path) -> Serving | None:
    """The daemon, or the ``run`` in the foreground, that holds the lock of *home*; None if none."""
    if not _is_locked(home / LOCK_FILE):
        return None
    return read_serving(home)


def read_serving(home: Path) -> Serving:
    """What was said last in *home*, by a daemon that may be gone."""
    try:
        return Serving.model_validate_json((home / SERVING_FILE).read_bytes())
    except (OSError, ValidationError):
        return Serving()


def _is_locked(path: Path) -> bool:
    """Whether another has locked the file, found without leaving a trace."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:  # whoever may not look here may not use the database beside it either
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
