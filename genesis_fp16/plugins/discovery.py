"""Installed plugins as their metadata describes them; imports no plugin code."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from importlib.metadata import (
    Distribution,
    EntryPoint,
    PackageNotFoundError,
    distributions,
    version,
)
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement

from genesis_fp16.domain.errors import GenesisError
from infrastructure.agent_contract.agent import AGENT_NAME
from infrastructure.events.plain_text import LONGEST, plain
from infrastructure.files import open_regular

AGENTS_GROUP = "genesis.agents"
OPTIONAL_AGENTS_GROUP = "genesis.optional_agents"
CONFIGURED_AGENTS_GROUP = "genesis.configured_agents"
CONFIGURED_BY = "replay"  # entry point that a file in the folder of definitions configures
DEFINITIONS_FOLDER = "agents.d"  # in the home: an agent's definition is NAME.toml
MAX_DEFINITION_BYTES = 1 << 18
UNREADABLE_REMEDY = (
    "install that distribution again, or delete the folder: torch cannot be imported either"
)
_LONGEST_NAME = 64  # characters shown of a malformed name, so that it does not break a table


class ShadowedPackageError(GenesisError, ImportError):
    """Another package of the same name hides our training library."""

    exit_code = os.EX_CONFIG

    def __init__(self, expected: Path, found: str) -> None:
        super().__init__(
            f"infrastructure.training is shadowed: expected below {expected}, found {found}; "
            "unset PYTHONPATH, or install genesis-fp16 into an environment of its own"
        )


class DefinitionsUnreadableError(GenesisError, OSError):
    """The folder of definitions exists and cannot be listed."""

    exit_code = os.EX_CONFIG

    def __init__(self, folder: Path, cause: OSError) -> None:
        super().__init__(
            f"{folder} cannot be read: {cause.strerror}; it must be a folder that this user may "
            "read, or not exist"
        )


class UnknownAgentError(GenesisError, LookupError):
    """No agent of this name is installed."""

    exit_code = 2  # a wrong argument on the command line

    def __init__(self, agent: str, installed: Iterable[str]) -> None:
        known = ", ".join(sorted(installed)) or "none"
        super().__init__(f"no agent {agent!r} is installed; there are {known}")


@dataclass(frozen=True, kw_only=True, slots=True)
class InstalledEntryPoint:
    """One entry point of an installed distribution.

    Attributes:
        name: Name on the left of the entry point; without control characters, of bounded length.
        target: ``module:attribute``.
        distribution, version: Distribution that declares it.
        root: Folder below which its module must lie; None if unknown.
        valid_name: Whether the name, before cleaning, is of the form of an agent's name.
        record: Hash of the list of its files; empty if no installer wrote one.
        editable: Whether its files are sources that may change at any time.
        optional: Whether the agent is off until the operator turns it on.
        missing: Requirement of the extras that it names which is not installed, and the command
            that installs it; empty if there is none.
        definition: File that describes the agent, if it is configured instead of installed; its
            factory is called with it.
        damage: Why the definition cannot be read; empty if it can.
    """

    name: str
    target: str
    distribution: str
    version: str
    root: Path | None
    valid_name: bool
    record: str = ""
    editable: bool = False
    optional: bool = False
    missing: str = ""
    definition: Path | None = None
    damage: str = ""


def installed_entry_points(
    group: str, unreadable: list[str] | None = None
) -> list[InstalledEntryPoint]:
    """Entry points of *group*, sorted by name; a name that two distributions use comes twice.

    A distribution whose metadata cannot be read is left out, and described in *unreadable*.
    """
    entry_points: list[InstalledEntryPoint] = []
    seen: set[str] = set()
    for distribution in distributions():
        try:
            # Of its folder; the public name reads a file.
            name = distribution._normalized_name  # type: ignore[attr-defined]
            if name in seen:  # an earlier folder of sys.path hides it
                continue
            seen.add(name)
            facts = _Facts(distribution)
            points = distribution.entry_points.select(group=group)
            entry_points += [_describe(point, facts) for point in points]
        except Exception as error:  # each kind of damage raises another
            if unreadable is not None:
                path = getattr(distribution, "_path", distribution.locate_file(""))
                what = f"{path} cannot be read ({type(error).__name__}: {error})"
                unreadable.append(plain(what, LONGEST))
    return sorted(entry_points, key=lambda point: (point.name, point.distribution))


def installed_agents(home: Path, unreadable: list[str] | None = None) -> list[InstalledEntryPoint]:
    """Entry points of all agents, sorted by name: installed, off by default, configured in *home*.

    For *unreadable* see `installed_entry_points`.
    """
    agents = installed_entry_points(AGENTS_GROUP, unreadable)
    optional = installed_entry_points(OPTIONAL_AGENTS_GROUP)
    agents += [replace(point, optional=True) for point in optional]
    agents += configured_agents(home)
    return sorted(agents, key=lambda point: (point.name, point.distribution))


def configured_agents(home: Path) -> list[InstalledEntryPoint]:
    """Agents that the definitions in *home* describe; their content is not checked here."""
    files = definition_files(home)
    if not files:
        return []
    points = [
        point
        for point in installed_entry_points(CONFIGURED_AGENTS_GROUP)
        if point.name == CONFIGURED_BY
    ]
    return [_configured(path, points) for path in files]


def definition_files(home: Path) -> list[Path]:
    """The definitions in *home*, sorted by name; hidden files are left out.

    Raises:
        DefinitionsUnreadableError: Their folder exists and cannot be listed.
    """
    folder = home / DEFINITIONS_FOLDER
    try:
        names = sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DefinitionsUnreadableError(folder, error) from error
    return [folder / name for name in names if name.endswith(".toml") and not name.startswith(".")]


def definition_of(home: Path, agent: str) -> Path | None:
    """File in *home* that describes *agent*; None if there is none."""
    path = home / DEFINITIONS_FOLDER / f"{agent}.toml"
    return path if path.exists() else None


def _configured(path: Path, points: Sequence[InstalledEntryPoint]) -> InstalledEntryPoint:
    """The agent that *path* describes; *points* are the entry points that could load it."""
    content, damage = _definition_content(path)
    if len(points) != 1:
        damage = "genesis-fp16 is installed incompletely: install it again"
    target = points[0] if len(points) == 1 else None
    return InstalledEntryPoint(
        name=plain(path.stem, _LONGEST_NAME),
        target="" if target is None else target.target,
        distribution=plain(f"{DEFINITIONS_FOLDER}/{path.name}", 2 * _LONGEST_NAME),
        version=content[:8],
        root=None if target is None else target.root,
        valid_name=AGENT_NAME.fullmatch(path.stem) is not None,
        record=content,
        definition=path.with_name(plain(path.name)),  # the same, if the name is text
        damage=damage,
    )


def _definition_content(path: Path) -> tuple[str, str]:
    """Hash of the file's content, and why it cannot be read, else empty."""
    try:
        with open_regular(path) as file:
            content = file.read(MAX_DEFINITION_BYTES + 1)
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or error
        remedy = "make it a file that this user may read, or remove it"
        return "", f"{path} cannot be read: {cause}; {remedy}"
    if len(content) > MAX_DEFINITION_BYTES:
        return "", f"{path} is larger than {MAX_DEFINITION_BYTES >> 10} KiB: shorten it"
    return sha256(content).hexdigest(), ""


class _Facts:
    """What the points of a *distribution* have in common, read once, when it is asked for."""

    def __init__(self, distribution: Distribution) -> None:
        self.distribution = distribution

    @cached_property
    def common(self) -> dict[str, Any]:
        """Fields of `InstalledEntryPoint`."""
        metadata = self.distribution.metadata  # each access reads the file again
        sources = editable_sources(self.distribution)
        record = self.distribution.read_text("RECORD")
        return {
            "distribution": metadata["Name"] or "unknown",
            "version": metadata["Version"] or "unknown",
            "root": sources or Path(str(self.distribution.locate_file(""))),
            "record": sha256(record.encode()).hexdigest() if record else "",
            "editable": sources is not None,
        }


def _describe(point: EntryPoint, facts: _Facts) -> InstalledEntryPoint:
    target, _, extras = point.value.partition("[")  # EntryPoint.extras fails at a malformed value
    wanted = [extra.strip() for extra in extras.partition("]")[0].split(",")]
    name = str(facts.common["distribution"])
    return InstalledEntryPoint(
        name=plain(point.name, _LONGEST_NAME),
        target=target.strip(),
        valid_name=AGENT_NAME.fullmatch(point.name) is not None,
        missing=_missing_requirement(facts.distribution, filter(None, wanted), name),
        **facts.common,
    )


def _missing_requirement(distribution: Distribution, extras: Iterable[str], name: str) -> str:
    """What of *extras* of the distribution called *name* is not installed, and the remedy."""
    for extra in extras:
        for text in distribution.requires or ():
            with suppress(InvalidRequirement):  # of its author; an installer refuses it
                requirement = Requirement(text)
                if requirement.marker is None or not requirement.marker.evaluate({"extra": extra}):
                    continue
                if requirement.marker.evaluate({"extra": ""}) or _is_installed(requirement):
                    continue
                return f"{requirement.name}, which its extra needs: pip install '{name}[{extra}]'"
    return ""


def _is_installed(requirement: Requirement) -> bool:
    try:
        installed = version(requirement.name)
    except PackageNotFoundError:
        return False
    return requirement.specifier.contains(installed, prereleases=True)


def registration_error(
    point: InstalledEntryPoint, group: Sequence[InstalledEntryPoint], kind: str
) -> str:
    """Why *point* of *group* cannot be used, as far as metadata shows; empty if it can.

    The *kind* of things that the group registers is ``agent`` or ``command``.
    """
    same = [other for other in group if other.name == point.name]
    if len(same) > 1:
        owners = " and ".join(sorted(other.distribution for other in same))
        configured = any(other.definition is not None for other in same)
        remedy = "rename or remove the file" if configured else "uninstall one of them"
        return f"{owners} both register the {kind} {point.name!r}; {remedy}"
    if not point.valid_name:
        return f"{point.name!r} is not a valid {kind} name: it must match {AGENT_NAME.pattern}"
    return point.damage


def agent_entry_points(home: Path) -> dict[str, str]:
    """``module:attribute`` by name of every agent that is installed or configured in *home*."""
    return {point.name: point.target for point in installed_agents(home)}


def installed_agent(agent: str, home: Path) -> InstalledEntryPoint:
    """The agent of that name, usable or not.

    Raises:
        UnknownAgentError: No agent of that name is installed, nor configured in *home*.
    """
    installed = {point.name: point for point in installed_agents(home)}
    if agent not in installed:
        raise UnknownAgentError(agent, installed)
    return installed[agent]


def entry_point_of(agent: str, home: Path) -> str:
    """``module:attribute`` of `installed_agent`; see there."""
    return installed_agent(agent, home).target


def check_not_shadowed() -> None:
    """Check that ``infrastructure.training`` is the one installed with us, without importing it.

    Raises:
        ShadowedPackageError: It is another distribution's, or missing.
    """
    expected = Path(__file__).resolve().parents[2]
    try:
        spec = find_spec("infrastructure.training")
    except ImportError as error:
        raise ShadowedPackageError(expected, str(error)) from error
    origin = spec.origin if spec is not None else None
    if origin is None or not Path(origin).resolve().is_relative_to(expected):
        raise ShadowedPackageError(expected, origin or "nothing")


def editable_sources(distribution: Distribution) -> Path | None:
    """Folder of the distribution's sources if it is editable, else None."""
    with suppress(ValueError, KeyError, TypeError):  # direct_url.json is missing or another form
        origin = json.loads(distribution.read_text("direct_url.json") or "")
        if origin["dir_info"]["editable"]:
            return Path(unquote(urlsplit(origin["url"]).path))
    return None
