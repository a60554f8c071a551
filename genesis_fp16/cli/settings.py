"""What commands know: where the store is, which settings the daemon follows, which are read here.

The commands that an operator needs in an emergency work even while settings are wrong: all that
they need to know is where the store is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from genesis_fp16.cli.output import print_warning
from genesis_fp16.settings import (
    DEFAULT_ENV_FILE,
    ENV_FILE_VARIABLE,
    Settings,
    SettingsError,
    load_settings,
    variable_name,
)

if TYPE_CHECKING:
    from genesis_fp16.store.serving import Serving

_PLACE = (variable_name("home"), variable_name("database_url"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """What a command knows.

    Attributes:
        place: Settings whose home and database are right; so are the others, unless `own` is None.
        own: As they are read here; None if any is wrong.
        daemon: That serves the home on this machine; None if none does.
        followed: In force: the daemon's where it has said which, else `own`.
    """

    place: Settings
    own: Settings | None
    daemon: Serving | None
    followed: Settings | None

    def source_of(self, name: str) -> str:
        """Where the attribute *name* of what is followed comes from."""
        if self.daemon is not None and self.followed is not self.own:
            return self.daemon.sources.get(variable_name(name), "default")
        return self.own.source_of(name) if self.own is not None else "unknown"

    @property
    def differences(self) -> dict[str, str]:
        """Hot variables that are read otherwise here, as ``the daemon's -> read here``."""
        if self.own is None or self.followed is None:
            return {}
        return self.followed.differences(self.own)


def known_settings() -> Known:
    """Read the settings for a command that needs only to know where the store is.

    What is wrong with others is told in a line on stderr, with what the daemon does meanwhile.

    Raises:
        SettingsError: Home or database are wrong; or others, and no database is where they say.
    """
    try:
        return _known(load_settings(), sound=True)
    except SettingsError as error:
        wrong = error
    known = _known(load_settings(only=_PLACE), sound=False)
    if known.daemon is None:
        from genesis_fp16.store.database import database_exists

        if not database_exists(known.place):  # the wrong line may be the one that names it
            raise wrong
    first, more = wrong.problems[0], len(wrong.problems) - 1
    print_warning(f"{first}{f'; and {more} more' if more else ''}; {_meanwhile(known)}")
    return known


def settings_to_start() -> Settings:
    """Read the settings for a process that is going to follow their file.

    Raises:
        SettingsError: Something is wrong, or the file is missing though it was named.
    """
    settings = load_settings()
    if why := named_in_vain(settings):
        raise SettingsError([why])
    return settings


def named_in_vain(settings: Settings) -> str:
    """What is wrong if the environment names a settings file that does not exist; else empty."""
    path = settings.env_file
    if path == DEFAULT_ENV_FILE or path.exists():
        return ""
    return (
        f"{ENV_FILE_VARIABLE}={path} (environment): there is no such file; correct the name, or "
        "put it there, with a comment in it if all defaults are meant"
    )


def _known(place: Settings, *, sound: bool) -> Known:
    from genesis_fp16.store.serving import serving

    own = place if sound else None
    daemon = serving(place.home.absolute())
    told = daemon.in_force(place) if daemon is not None else None
    return Known(place=place, own=own, daemon=daemon, followed=told or own)


def _meanwhile(known: Known) -> str:
    """What the wrong settings mean for a daemon."""
    home, kept = known.place.home.absolute(), known.followed
    if known.daemon is None:
        return f"no daemon serves {home}, and none starts until that is mended"
    if kept is None:
        return f"a daemon serves {home} ({known.daemon}) and keeps what it had"
    flag = str(kept.enable_fp16_training).lower()
    return (
        f"the daemon ({known.daemon}) keeps {variable_name('enable_fp16_training')}={flag}, "
        f"{variable_name('precision')}={kept.precision} and what else it had"
    )
