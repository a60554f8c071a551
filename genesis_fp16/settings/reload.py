"""Hot settings: notices a change of the settings file and applies what may change live.

Hot are ``ENABLE_FP16_TRAINING``, ``GENESIS_PRECISION``, the settings of the training step, of the
guard and of the canary, and each agent's ``PRECISION``. A change of any other setting is reported
as needing a restart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from genesis_fp16.domain.guard import GuardSettings
from genesis_fp16.settings.env_file import read_bounded
from genesis_fp16.settings.reading import SettingsError, load_settings
from genesis_fp16.settings.settings import AGENTS_PREFIX, AgentSettings, Settings, variable_name
from genesis_fp16.settings.trainer import TrainerSettings

HOT_FIELDS = (
    "enable_fp16_training",
    "precision",
    *TrainerSettings.model_fields,
    *GuardSettings.model_fields,
)
_LOST = "is gone or empty: put it back, or a comment into it if all defaults are meant"
POLL_SECONDS = 0.5
CONFIRM_SECONDS = 0.1

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True, slots=True)
class Reload:
    """What came of a change.

    Attributes:
        settings: In force now.
        changed: Variable to its old and new value, of what took effect.
        cold: Variables that differ from what is in force until a restart.
        shadowed: Variables that the file sets in vain, since the environment sets them.
        error: Why the file was refused; None if it was not.
    """

    settings: Settings
    changed: Mapping[str, str]
    cold: tuple[str, ...] = ()
    shadowed: tuple[str, ...] = ()
    error: SettingsError | None = None

    def tell(self) -> None:
        """Log it."""
        if self.error is not None:
            log.error("settings_refused", error=str(self.error), in_force="the old ones")
            return
        log.info("settings_reloaded", changed=dict(self.changed))
        if self.cold:
            log.warning("settings_need_restart", settings=self.cold)
        if self.shadowed:
            log.warning("settings_shadowed_by_environment", settings=self.shadowed)


class SettingsReloader:
    """Polls the file's content, since file watchers miss some ways of swapping a file.

    A file that is lost, or emptied as by a full disk, changes nothing: it may have said false.

    Args:
        settings: In force; name the file.
        environ: The environment; by default the process's own.
    """

    def __init__(self, settings: Settings, environ: Mapping[str, str] | None = None) -> None:
        self._settings = settings
        self._environ = environ
        self._path = settings.env_file.absolute()
        self._had_content = _has_content(self._path)
        self._seen: bytes | None = None  # the first poll compares, whatever happened before it
        self._candidate: bytes | None = None
        self._next_poll = 0.0

    def poll(self, now: float) -> Reload | None:
        """Reload if the file has changed and rests; at most every `POLL_SECONDS`.

        A new content must be seen twice, `CONFIRM_SECONDS` apart: an editor that truncates and
        then writes must not switch anything in between.

        Args:
            now: Monotonic seconds.
        """
        if now < self._next_poll:
            return None
        digest = _digest(self._path)
        self._next_poll = now + POLL_SECONDS
        if digest == self._seen:
            return None
        if digest != self._candidate:
            self._candidate = digest
            self._next_poll = now + CONFIRM_SECONDS
            return None
        first = self._seen is None
        outcome = self.reload()
        nothing = outcome.error is None and not outcome.changed and not outcome.cold
        return None if first and nothing else outcome

    def reload(self) -> Reload:
        """Read, validate, compare, apply what is hot; or keep what is in force."""
        self._seen = _digest(self._path)
        try:
            if self._had_content and not _has_content(self._path):
                raise SettingsError([f"{self._path} {_LOST}"])
            found = load_settings(self._path, self._environ)
        except SettingsError as error:
            return Reload(settings=self._settings, changed={}, error=error)
        self._had_content = _has_content(self._path)
        before, self._settings = self._settings, apply_hot(self._settings, found)
        return Reload(
            settings=self._settings,
            changed=differences(before, self._settings),
            cold=tuple(differences(self._settings, found)),
            shadowed=found.shadowed,
        )


def _has_content(path: Path) -> bool:
    """Whether there is anything at *path*, readable or not: a file without a byte is a lost one."""
    try:
        return bool(read_bounded(path))
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _digest(path: Path) -> bytes:
    try:
        return hashlib.sha256(read_bounded(path)).digest()
    except OSError as error:  # missing is a content too, and so is unreadable
        return str(error).encode()


def apply_hot(in_force: Settings, found: Settings) -> Settings:
    """*in_force* with the hot settings of *found*, and with *found*'s sources of them."""
    agents = {
        key: in_force.agents.get(key, AgentSettings()).model_copy(
            update={"precision": found.agents.get(key, AgentSettings()).precision}
        )
        for key in {**in_force.agents, **found.agents}
    }
    cold = [name for name in Settings.model_fields if name not in HOT_FIELDS]
    kept = {name: getattr(in_force, name) for name in cold}
    return found.model_copy(update={**kept, "agents": agents})


def differences(before: Settings, after: Settings) -> dict[str, str]:
    """Variable to ``old -> new``. Only hot ones are shown, and none of those is secret."""
    found = {}
    for name in Settings.model_fields:
        old, new = getattr(before, name), getattr(after, name)
        if name not in ("agents", "env_file") and old != new:
            found[variable_name(name)] = f"{old} -> {new}"
    for key in sorted({*before.agents, *after.agents}):
        was, now = (s.agents.get(key, AgentSettings()) for s in (before, after))
        for name in AgentSettings.model_fields:
            old, new = getattr(was, name), getattr(now, name)
            if old != new:
                found[f"{AGENTS_PREFIX}{key}__{name}".upper()] = f"{old} -> {new}"
    return found
