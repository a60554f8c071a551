"""Evidence bundles: one JSON file with the numbers behind each decision of the guard."""

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
from genesis_fp16.settings import VARIABLES, Settings
from infrastructure.events.mismatch_report import MismatchReport
from infrastructure.events.plain_text import PlainText, plain
from infrastructure.files import json_text, write_atomically

_FOLDER = "guard"
_LARGEST = 16 << 20  # bytes; a bundle has a few thousand
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


class _Mismatch(_Part):
    report: MismatchReport


class Bundle(_Part):
    """The fields of a bundle that `precision explain` shows; others are kept unchecked."""

    attempt: int | None = None
    statistics: list[_Statistics] = []
    mismatches: list[_Mismatch] = []
    offending_modules: list[PlainText] = []
    checkpoint: _Checkpoint | None = None


def write_evidence(home: Path, decision: Decision, evidence: Mapping[str, object]) -> Decision:
    """Write *decision* and its *evidence*; return the decision with the name of the file.

    Numbers that are not finite become text.

    Raises:
        OSError: The file could not be written; no partial file is left.
    """
    moment = datetime.fromtimestamp(decision.at, UTC)
    name = f"{moment:%Y%m%dT%H%M%S.%f}-{decision.state}.json"
    named = replace(decision, evidence=str(Path(_FOLDER) / decision.agent / name))
    path = home / named.evidence
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json_text({**asdict(named), **evidence}, indent=2, default=str))
    return named


def read_evidence(home: Path, decision: Decision) -> Bundle | None:
    """The bundle of *decision*; None if none was written.

    Raises:
        EvidenceError: The file is missing or not a bundle; names the file and the reason.
    """
    if not decision.evidence:
        return None
    path = home / decision.evidence
    try:
        return Bundle.model_validate(_content(path))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise EvidenceError(path, f"not an evidence bundle: {where}: {first['msg']}") from error


def unrecorded_decisions(home: Path, recorded: Set[str]) -> Iterator[Decision]:
    """The guard's last decision on each agent, if it is missing in the store.

    A daemon that ends while its store is locked leaves such a bundle. The files that decisions in
    the store name are *recorded*.
    """
    for folder in sorted((home / _FOLDER).glob("*/")):
        newest = max(folder.glob("*.json"), default=None)
        if newest is None or (name := str(newest.relative_to(home))) in recorded:
            continue
        try:
            decision = _DECISION.validate_python(_content(newest))
        except (EvidenceError, ValidationError):
            continue  # not written by a guard, or incomplete
        if (decision.actor, decision.agent, decision.evidence) == (GUARD, folder.name, name):
            yield decision


def relevant_settings(settings: Settings, agent: str) -> dict[str, object]:
    """The settings that affect the guard's decisions about *agent*, for the evidence."""
    names = {*GuardSettings.model_fields, "enable_fp16_training", "precision", "cpu_half"}
    names |= {field for name, field in VARIABLES.items() if name.startswith("FP16_")}
    relevant = settings.model_dump(include=names)
    agent_settings = settings.for_agent(agent)
    agents = {
        "agent_precision": agent_settings.precision,
        "agent_role_precision": agent_settings.role_precision,
    }
    return {**relevant, **agents}


def _content(path: Path) -> object:
    """The JSON in the file. Its type and size are checked first: anything may lie there by now."""
    try:
        with open(path, "rb", opener=_open_without_waiting) as opened:
            status = os.fstat(opened.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise EvidenceError(path, "not a regular file")
            if status.st_size > _LARGEST:
                raise EvidenceError(
                    path, f"it has {status.st_size} bytes, a bundle has a few thousand"
                )
            return from_json(opened.read(_LARGEST), allow_inf_nan=False)
    except EvidenceError:
        raise
    except (OSError, ValueError) as error:  # ValueError: not JSON, or not a path
        raise EvidenceError(path, str(error)) from error


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe without a writer would block forever
