"""Remembers which demands for FP32 are in force, so that none ends because a file or row is lost.

A demand in the settings ends only when a person writes another value: an empty, missing or other
settings file that no longer mentions it is refused. Stored overrides are remembered, too, so that
one that vanishes from the database can be restored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.domain.precision import Override
from genesis_fp16.domain.redaction import visible
from genesis_fp16.settings.env_file import (
    ENVIRONMENT,
    FALSE_TEXTS,
    MAX_BYTES,
    ROLLBACK_FLAG,
    read_env_file,
)
from genesis_fp16.settings.settings import Settings
from infrastructure.files import JsonFileError, read_model, write_model

MEMORY_FILE = "rollbacks.json"  # in GENESIS_HOME
_REPEAT_SECONDS = 60.0
_END_OF_CALENDAR = 253402300800.0  # the year 10000


class Rollback(BaseModel):
    """A demand for FP32 in the settings.

    Attributes:
        since: Unix seconds at which it was first seen.
        texts: Texts of the variable at that time, by place: ``environment`` or an absolute path.
    """

    model_config = ConfigDict(frozen=True)

    since: Annotated[float, Field(ge=0.0, lt=_END_OF_CALENDAR)]
    texts: dict[str, str]


class Rollbacks(BaseModel):
    """Demands for FP32: of the settings, by variable, and stored overrides."""

    model_config = ConfigDict(frozen=True)

    settings: dict[str, Rollback] = {}
    overrides: tuple[Override, ...] = ()


class UnreadableMemoryError(GenesisError, ValueError):
    """The remembered demands cannot be read."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{visible(str(path))} cannot be read ({visible(why)})")


class RollbackMemory:
    """The memory of one home, kept up to date by the process that holds the home's lock.

    Args:
        settings: Settings in force.
        clock: Unix time in seconds.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._kept: tuple[Settings, tuple[Override, ...]] | None = None
        self._log_error_at = 0.0
        self._home = settings.home.absolute() / MEMORY_FILE
        try:
            self.remembered = read_rollbacks(self._home)
        except UnreadableMemoryError:  # `lost_rollbacks` has demanded an explicit flag
            self.remembered = Rollbacks()

    def keep(self, settings: Settings, overrides: Sequence[Override]) -> None:
        """Remember the demands of *settings* and *overrides*, and forget those that have ended.

        An error, for example of a full disk, is logged, and the next call tries again.
        """
        fp32 = tuple(override for override in overrides if override.precision == "fp32")
        if self._kept is not None and self._kept[0] is settings and self._kept[1] == fp32:
            return
        try:
            self._write(settings, fp32)
        except OSError as error:
            self._kept = None
            if (now := time.monotonic()) >= self._log_error_at:
                self._log_error_at = now + _REPEAT_SECONDS
                remedy = f"free space or permit writing for {self._home}; the daemon tries again"
                _warn("rollbacks_not_remembered", error=str(error), remedy=remedy)
        else:
            self._kept = settings, fp32

    def _write(self, settings: Settings, fp32: tuple[Override, ...]) -> None:
        before = self.remembered.settings
        rollbacks = {
            name: Rollback(
                since=before[name].since if name in before else self._clock(),
                texts=dict(settings.texts_of(name)),
            )
            for name in demanding_variables(settings)
        }
        current = Rollbacks(settings=rollbacks, overrides=fp32)
        _replace(self._home, current)
        self.remembered = current
        for name in before.keys() - rollbacks.keys():
            _warn("rollback_ended", setting=name, now=dict(settings.texts_of(name)))
        # A home that the settings file names is lost together with that file.
        in_file = settings.home_is_named_in_file
        _replace(_beside(settings.env_file), current if in_file else Rollbacks())


def demanding_variables(settings: Settings) -> Iterator[str]:
    """Variables whose values in force demand FP32: the flag, and the precision of agents."""
    if not settings.enable_fp16_training:
        yield ROLLBACK_FLAG
    for key, agent in settings.agents.items():
        if agent.precision == "fp32":
            yield f"GENESIS_AGENTS__{key.upper()}__PRECISION"
        if agent.role_preset is not None and agent.role_preset.half is None:
            yield f"GENESIS_AGENTS__{key.upper()}__ROLE_PRECISION"


def read_rollbacks(path: Path) -> Rollbacks:
    """The demands remembered at *path*; none if the file is missing.

    Raises:
        UnreadableMemoryError: The file cannot be read, or holds nothing, which is never written.
    """
    try:
        remembered = read_model(path, Rollbacks, limit=MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return Rollbacks()
    except (OSError, JsonFileError) as error:
        why = str(error.strerror or error) if isinstance(error, OSError) else "damaged"
        raise UnreadableMemoryError(path, why) from error
    if remembered == Rollbacks():
        raise UnreadableMemoryError(path, "damaged")
    return remembered


def lost_rollbacks(settings: Settings, home: Path | None = None) -> list[str]:
    """What is wrong with *settings* that no longer mention a remembered demand for FP32.

    Args:
        settings: Valid settings that were just read.
        home: Home of the running daemon, if it follows another than these settings name.
    """
    problems: dict[str, str] = {}
    demanding = set(demanding_variables(settings))
    for path in (
        (home or settings.home).absolute() / MEMORY_FILE,
        _beside(settings.env_file),
    ):
        try:
            remembered = read_rollbacks(path).settings
        except UnreadableMemoryError as error:
            if not settings.texts_of(ROLLBACK_FLAG):
                problems.setdefault(
                    ROLLBACK_FLAG,
                    f"{ROLLBACK_FLAG}: {error}, so half precision may have been rolled back; "
                    f"write {ROLLBACK_FLAG}=false or {ROLLBACK_FLAG}=true into "
                    f"{visible(str(settings.env_file.absolute()))}",
                )
            continue
        for name, rollback in remembered.items():
            if name not in demanding and (why := _why_not_ended(name, rollback, settings)):
                problems.setdefault(name, f"{why} (remembered in {visible(str(path))})")
    return list(problems.values())


def _why_not_ended(name: str, rollback: Rollback, settings: Settings) -> str:
    """Why the demand still counts; empty if a person has written another value since."""
    fp32 = _fp32_text(name)
    half = "true" if name == ROLLBACK_FLAG else ""
    file, now = str(settings.env_file.absolute()), settings.texts_of(name)
    places = [place for place, text in rollback.texts.items() if _demands(name, text)]
    since = datetime.fromtimestamp(rollback.since, UTC)
    where = visible(" and ".join(places)).replace(ENVIRONMENT, f"the {ENVIRONMENT}")
    what = f"{name}: was {fp32} in {where} since {since:%Y-%m-%d %H:%M}Z"
    remedy = (
        f"to stay in FP32 write {name}={fp32} into {visible(file)}, to end the rollback write "
        f"{name}={half}"
    )
    written = [p for p in now if p not in rollback.texts or _demands(name, rollback.texts[p])]
    if not written:
        return f"{what}, and the settings read now no longer say so; {remedy}"
    for place in places:
        if place not in (ENVIRONMENT, file):
            still = read_env_file(Path(place), []).get(name)
            if still is not None and _demands(name, still.value):
                return f"{what}, which still says so; let GENESIS_ENV_FILE name it, or correct it"
    return ""


def _demands(name: str, text: str) -> bool:
    """Whether *text*, a valid value of the variable, demands FP32."""
    if name == ROLLBACK_FLAG:
        return text.lower() in FALSE_TEXTS
    return text == _fp32_text(name)


def _fp32_text(name: str) -> str:
    """Value of the variable *name* that demands FP32."""
    if name == ROLLBACK_FLAG:
        return "false"
    return "fp32_baseline" if name.endswith("__ROLE_PRECISION") else "fp32"


def _beside(env_file: Path) -> Path:
    """The second copy, for a home that the settings file itself names."""
    return env_file.absolute().with_name(f"{env_file.name}.{MEMORY_FILE}")


def _replace(path: Path, rollbacks: Rollbacks) -> None:
    """Write *rollbacks* if *path* holds others; no file where there is nothing to remember."""
    if rollbacks == Rollbacks():
        if path.exists():  # unlinking a missing file fails in a read-only folder
            path.unlink(missing_ok=True)
        return
    try:
        if read_rollbacks(path) == rollbacks:
            return
    except UnreadableMemoryError:
        pass  # is replaced
    write_model(path, rollbacks, indent=2)


def _warn(event: str, **fields: object) -> None:
    import structlog  # it imports rich, which most commands do without

    structlog.get_logger().warning(event, **fields)
