"""Settings for a command: where the store is, what the daemon follows, what is read here.

The commands that an operator needs in an emergency work even while settings are wrong: they need
only the location of the store.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from genesis_fp16.cli.output import print_warning
from genesis_fp16.settings import (
    Settings,
    SettingsError,
    load_settings,
    variable_name,
)

if TYPE_CHECKING:
    from genesis_fp16.store.daemon_status import DaemonStatus

_LOCATION = (variable_name("home"), variable_name("database_url"))


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandSettings:
    """Settings that a command works with.

    Attributes:
        location: Settings whose home and database are valid; the others are, too, unless `local`
            is None.
        local: Settings read here; None if any is wrong.
        daemon: Daemon that holds the home's lock on this machine; None if none does.
        in_force: Settings that the daemon follows if it has published them, else `local`.
    """

    location: Settings
    local: Settings | None
    daemon: DaemonStatus | None
    in_force: Settings | None

    def source_of(self, field: str) -> str:
        """Where the value of *field* in `in_force` is set."""
        if self.daemon is not None and self.in_force is not self.local:
            return self.daemon.sources.get(variable_name(field), "default")
        return self.local.source_of(field) if self.local is not None else "unknown"

    @property
    def differences(self) -> dict[str, str]:
        """Hot variables whose value differs here, as ``the daemon's -> read here``."""
        if self.local is None or self.in_force is None:
            return {}
        return self.in_force.differences(self.local)

    def describe_effect(self, now: str, later: str) -> str:
        """What a daemon does with a stored change: *now* if it may serve, *later* if none does."""
        elsewhere = self.location.database_url is not None  # a daemon may serve on another host
        if self.daemon is not None or elsewhere:
            return f"a running daemon {now}"
        return f"no daemon serves {self.location.home.absolute()} now; the next one {later}"


def load_location() -> Settings:
    """Settings whose home and database are valid; other wrong ones are left unread.

    Raises:
        SettingsError: Home or database are wrong.
    """
    return load_settings(only=_LOCATION)


def load_command_settings() -> CommandSettings:
    """Read the settings for a command that needs only the location of the store.

    Other wrong settings are reported in a line on stderr, with what the daemon keeps meanwhile.

    Raises:
        SettingsError: Home or database are wrong; or others are, and no database is there.
    """
    try:
        settings = load_settings()
    except SettingsError as error:
        wrong = error
    else:
        return _with_daemon(settings, settings)
    loaded = _with_daemon(load_location(), None)
    if loaded.daemon is None:
        from genesis_fp16.store.database import database_exists

        if not database_exists(loaded.location):  # the wrong line may be the one that names it
            raise wrong
    first, more = wrong.problems[0], len(wrong.problems) - 1
    print_warning(f"{first}{f'; and {more} more' if more else ''}; {_describe_effect(loaded)}")
    return loaded


def _with_daemon(location: Settings, local: Settings | None) -> CommandSettings:
    from genesis_fp16.store.daemon_status import find_daemon

    daemon = find_daemon(location.home.absolute())
    followed = daemon.settings_in_force(location) if daemon is not None else None
    return CommandSettings(
        location=location, local=local, daemon=daemon, in_force=followed or local
    )


def _describe_effect(loaded: CommandSettings) -> str:
    """What the wrong settings mean for a daemon."""
    home, kept = loaded.location.home.absolute(), loaded.in_force
    if loaded.daemon is None:
        return f"no daemon serves {home}, and none starts until this is fixed"
    if kept is None:
        return f"a daemon serves {home} ({loaded.daemon}) and keeps its previous settings"
    flag = str(kept.enable_fp16_training).lower()
    return (
        f"the daemon ({loaded.daemon}) keeps {variable_name('enable_fp16_training')}={flag}, "
        f"{variable_name('precision')}={kept.precision} and its other previous settings"
    )
