"""Evidence bundles: what each decision of the guard rested on, one JSON file each."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Set
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import from_json

from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.domain.guard import GUARD, Decision, GuardSettings
from genesis_fp16.settings import Settings
from genesis_fp16.system.json_text import json_text
from infrastructure.events.plain_text import PlainText, plain
from infrastructure.files import write_atomically

_FOLDER = "guard"
_LONGEST = 16 << 20  # bytes; a bundle has some thousand
_DECISION: TypeAdapter[Decision] = TypeAdapter(Decision)


class EvidenceError(GenesisError, ValueError):
    """A bundle cannot be read."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{plain(str(path))} cannot be read: {' '.join(plain(why, 300).split())}")


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow")


class _Statistics(_Part):
    loss_scale: float


class _Checkpoint(_Part):
    step: int
    path: PlainText


class Bundle(_Part):
    """What `precision explain` tells of a bundle; whatever else it holds is kept as it is."""

    attempt: int | None = None
    statistics: list[_Statistics] = []
    offending_modules: list[PlainText] = []
    checkpoint: _Checkpoint | None = None


def write_evidence(home: Path, decision: Decision, seen: Mapping[str, object]) -> Decision:
    """Write down *decision* and what led to it; the decision that names the file.

    Args:
        home: ``GENESIS_HOME``.
        decision: Without a file yet.
        seen: What led to it; numbers that are not finite become text.

    Raises:
        OSError: The disk refused; nothing is left behind that a reader would take for whole.
    """
    moment = datetime.fromtimestamp(decision.at, UTC)
    name = f"{moment:%Y%m%dT%H%M%S.%f}-{decision.state}.json"
    named = replace(decision, evidence=str(Path(_FOLDER) / decision.agent / name))
    path = home / named.evidence
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json_text({**asdict(named), **seen}))
    return named


def read_evidence(home: Path, decision: Decision) -> Bundle | None:
    """The bundle of *decision*; None if none was written.

    Raises:
        EvidenceError: The file is gone, or is no bundle; it names the file and the reason.
    """
    return _read(home / decision.evidence) if decision.evidence else None


def unrecorded(home: Path, recorded: Set[str]) -> Iterator[Decision]:
    """The guard's last decision on each agent, where the store has never heard of it.

    A daemon that ends while its store is locked leaves such a bundle behind.

    Args:
        home: ``GENESIS_HOME``.
        recorded: The files that decisions in the store name.
    """
    for folder in sorted((home / _FOLDER).glob("*/")):
        newest = max(folder.glob("*.json"), default=None)
        if newest is None or (name := str(newest.relative_to(home))) in recorded:
            continue
        try:
            decision = _DECISION.validate_python(_content(newest))
        except (EvidenceError, ValidationError):
            continue  # not of a guard, or torn: no word that could be taken
        if (decision.actor, decision.agent, decision.evidence) == (GUARD, folder.name, name):
            yield decision


def settings_in_force(settings: Settings, agent: str) -> dict[str, object]:
    """The settings that bear on the guard's decisions about *agent*."""
    names = [*GuardSettings.model_fields, "enable_fp16_training", "precision", "cpu_half"]
    names += [name for name in type(settings).model_fields if name.startswith("fp16_")]
    found = {name: getattr(settings, name) for name in names}
    return {**found, "agent_precision": settings.for_agent(agent).precision}


def _read(path: Path) -> Bundle:
    try:
        return Bundle.model_validate(_content(path))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise EvidenceError(path, f"it is no evidence; {where or 'it'}: {first['msg']}") from error


def _content(path: Path) -> object:
    """The JSON in the file, which is looked at before it is read: it may be anything by now."""
    try:
        with open(path, "rb", opener=_without_waiting) as opened:
            found = os.fstat(opened.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise EvidenceError(path, "it is no file")
            if found.st_size > _LONGEST:
                raise EvidenceError(path, f"it has {found.st_size} bytes, a bundle some thousand")
            return from_json(opened.read(_LONGEST), allow_inf_nan=False)
    except EvidenceError:
        raise
    except (OSError, ValueError) as error:  # ValueError: no JSON, or no path
        raise EvidenceError(path, str(error)) from error


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe nobody writes to would block for ever
