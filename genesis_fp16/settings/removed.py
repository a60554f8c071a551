"""Settings that earlier releases had: their names are ignored, with a warning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from genesis_fp16.settings.env_file import Variable


@dataclass(frozen=True, kw_only=True, slots=True)
class RemovedSetting:
    """A setting that a release has removed.

    Attributes:
        release: Version of that release.
        remedy: What an operator who had set it does now.
    """

    release: str
    remedy: str


REMOVED_SETTINGS: Mapping[str, RemovedSetting] = {
    "GENESIS_FLEET": RemovedSetting(
        release="0.2.0",
        remedy="delete it: each run has a worker of its own; raise GENESIS_SLOTS where runs wait",
    ),
}


def take_removed(*places: dict[str, Variable]) -> dict[str, str]:
    """Take the removed settings out of *places*.

    Returns:
        Name to a warning that tells where it is set, the release that removed it, and the remedy.
    """
    warnings = {}
    for name, removed in REMOVED_SETTINGS.items():
        if variables := [place.pop(name) for place in places if name in place]:
            sources = ", ".join(variable.source for variable in variables)
            what = f"{name} ({sources}) has no effect: release {removed.release} removed it"
            warnings[name] = f"{what}; {removed.remedy}"
    return warnings
