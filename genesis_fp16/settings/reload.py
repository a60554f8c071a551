"""Notices a change of the settings file and applies the hot settings of it.

A flag that demands FP32 takes effect before anything else of the file is looked at, and also if
the rest is wrong. In a file that is wrong, a line counts, too, that only resembles such a flag. One
that allows half precision again counts only in a file that is right.

A change of any other setting is reported as waiting for a restart, but for those of an agent that
cannot run yet: it may need them to become ready.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from genesis_fp16.domain.redaction import visible
from genesis_fp16.settings.env_file import ROLLBACK_FLAG, read_bounded
from genesis_fp16.settings.settings import Settings
from genesis_fp16.settings.source import (
    SettingsError,
    load_settings,
    read_demand_for_fp32,
    read_meant_demand_for_fp32,
)

POLL_SECONDS = 0.5
CONFIRM_SECONDS = 0.1

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True, slots=True)
class Reload:
    """Outcome of a change.

    Attributes:
        settings: Settings in force now.
        changed: Variables that took effect, each as ``old -> new`` without credentials.
        cold: Variables whose change waits for a restart.
        shadowed: Variables whose value in the file has no effect: the environment sets another.
        removed: Warnings about settings of earlier releases that were not there before.
        unknown: Warnings about names with our prefix that were not there before.
        error: Why the file was refused; None if it was not.
    """

    settings: Settings
    changed: Mapping[str, str]
    cold: tuple[str, ...] = ()
    shadowed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    error: SettingsError | None = None

    def log_outcome(self) -> None:
        """Log the outcome."""
        if self.error is not None:
            kept = "previous settings" + (" but half precision" if self.changed else "")
            log.error("settings_refused", error=str(self.error), keeping=kept)
            return
        log.info("settings_reloaded", changed=dict(self.changed))
        if self.cold:
            log.warning("settings_deferred", settings=self.cold, until="restart")
        if self.shadowed:
            log.warning("settings_shadowed", settings=self.shadowed, by="environment")
        if self.removed:
            log.warning("settings_removed", ignored=self.removed)
        if self.unknown:
            log.warning("settings_unknown", ignored=self.unknown)


class SettingsReloader:
    """Polls the file's content, since file watchers miss some ways of replacing a file.

    A missing or empty file (a full disk can empty it) changes nothing: it may have said false.

    The *settings* in force name the file; the environment is by default the process's own.

    Attributes:
        in_use: Whether the agent with this key of `Settings.agents` may be running; all settings of
            one that is not take effect at once. By default every agent is.
    """

    def __init__(self, settings: Settings, environ: Mapping[str, str] | None = None) -> None:
        self.in_use: Callable[[str], bool] = lambda _key: True
        self._settings = settings
        self._environ = environ
        self._path = settings.env_file.absolute()
        self._had_content = _has_content(self._path)
        self._seen: bytes | None = None  # so the first poll compares
        self._candidate: bytes | None = None
        self._next_poll = 0.0

    def poll(self, now: float) -> Reload | None:
        """Reload if the file has changed and is at rest; at most every `POLL_SECONDS`.

        A new content must be seen twice, `CONFIRM_SECONDS` apart: the moment between an editor's
        truncation and its write must not switch anything. A demand for FP32 needs no second look:
        no part of a file says false where the whole says true. *now* is in monotonic seconds.
        """
        if now < self._next_poll:
            return None
        digest = self._digest()
        self._next_poll = now + POLL_SECONDS
        if digest == self._seen:
            return None
        if digest != self._candidate:
            self._candidate = digest
            self._next_poll = now + CONFIRM_SECONDS
            return self._take_flag()
        first = self._seen is None
        outcome = self.reload()
        news = (outcome.error, outcome.changed, outcome.cold, outcome.removed, outcome.unknown)
        return None if first and not any(news) else outcome

    def reload(self) -> Reload:
        """Read and validate the file; apply its hot settings, or keep the settings in force.

        If its flag demands FP32, and half precision is allowed, this applies the flag alone, and
        the next poll the rest.
        """
        digest = self._digest()
        if (flag := self._take_flag()) is not None:
            self._candidate, self._next_poll = digest, -math.inf
            return flag
        self._seen = digest
        try:
            if self._had_content and not _has_content(self._path):
                remedy = "restore it, or put a comment into it if you want all defaults"
                raise SettingsError([f"{visible(str(self._path))} is missing or empty; {remedy}"])
            loaded = load_settings(self._path, self._environ, home=self._settings.home)
        except SettingsError as error:
            return self._refuse(error)
        self._had_content = _has_content(self._path)
        before = self._settings
        self._settings = before.with_hot_settings_of(loaded, in_use=self.in_use)
        return Reload(
            settings=self._settings,
            changed=before.differences(self._settings),
            cold=tuple(self._settings.differences(loaded)),
            shadowed=loaded.shadowed,
            removed=_new_warnings(before.removed, loaded.removed),
            unknown=_new_warnings(before.unknown, loaded.unknown),
        )

    def _digest(self) -> bytes:
        """Digest of the file, and of the one of an attached Genesis."""
        attached = self._settings.attached_env_file
        return _digest(self._path) + (b"" if attached is None else _digest(attached))

    def _refuse(self, error: SettingsError) -> Reload:
        """Keep the settings in force, and demand FP32 if a line of the wrong file means that."""
        before = self._settings
        is_said = read_demand_for_fp32(self._path, self._environ) is not None
        if not is_said and (meant := read_meant_demand_for_fp32(self._path)) is not None:
            line = meant.source_of("enable_fp16_training")
            note = f"{line} was taken for {ROLLBACK_FLAG}=false, so all training is in FP32"
            error = error.with_note(f"{note}; to end that write {ROLLBACK_FLAG}=true")
            if before.enable_fp16_training:
                self._settings = before.with_flag_of(meant)
        changed = before.differences(self._settings)
        return Reload(settings=self._settings, changed=changed, error=error)

    def _take_flag(self) -> Reload | None:
        """Apply a demand for FP32 of the flag if it is new, also if the rest is wrong."""
        before = self._settings
        if not before.enable_fp16_training:
            return None
        demand = read_demand_for_fp32(self._path, self._environ)
        if demand is None:
            return None
        self._had_content = _has_content(self._path)
        self._settings, self._seen = before.with_flag_of(demand), None  # read again with the rest
        return Reload(settings=self._settings, changed=before.differences(self._settings))


def _new_warnings(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(warning for name, warning in now.items() if name not in before)


def _has_content(path: Path) -> bool:
    """Whether a file with content, readable or not, is at *path*."""
    try:
        return bool(read_bounded(path))
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _digest(path: Path) -> bytes:
    try:
        return hashlib.sha256(read_bounded(path)).digest()
    except OSError as error:  # a missing or unreadable file counts as a content, too
        return str(error).encode()
