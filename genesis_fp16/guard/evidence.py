"""Evidence bundles: what each decision of the guard rested on, one JSON file each."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

from genesis_fp16.agent_files import write_whole
from genesis_fp16.guard.decision import Decision
from genesis_fp16.guard.guard_settings import GuardSettings
from genesis_fp16.settings import Settings

_FOLDER = "guard"


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
    write_whole(path, json.dumps(_finite({**asdict(named), **seen}), indent=2, allow_nan=False))
    return named


def read_evidence(home: Path, decision: Decision) -> dict[str, object] | None:
    """The bundle of *decision*; None if there is none that can be read."""
    try:
        bundle = json.loads((home / decision.evidence).read_bytes())
    except (OSError, ValueError):
        return None
    return bundle if isinstance(bundle, dict) else None


def settings_in_force(settings: Settings, agent: str) -> dict[str, object]:
    """The settings that bear on the guard's decisions about *agent*."""
    names = [*GuardSettings.model_fields, "enable_fp16_training", "precision", "cpu_half"]
    names += [name for name in type(settings).model_fields if name.startswith("fp16_")]
    found = {name: getattr(settings, name) for name in names}
    return {**found, "agent_precision": settings.for_agent(agent).precision}


def _finite(value: object) -> object:
    """*value* with numbers that JSON lacks as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value
