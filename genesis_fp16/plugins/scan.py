"""What is installed, and a fingerprint of the files of each agent; imports no plugin code.

The daemon scans in a child process: a running interpreter caches metadata and does not read
``.pth`` files again.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import platform
import stat
import sys
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

from pydantic import BaseModel, ConfigDict

import genesis_fp16
from genesis_fp16.plugins.discovery import (
    DEFINITIONS_FOLDER,
    InstalledEntryPoint,
    definition_files,
    installed_agents,
    registration_error,
)

_METADATA = (".dist-info", ".egg-info", ".egg-link", ".pth")
Mark: TypeAlias = tuple[str, int, int]  # path, time of its last change, size; 0 if it is missing
_MOST_FILES = 5000  # of one module; further files of a larger one are not watched


class FoundAgent(BaseModel):
    """One agent as its metadata and files describe it.

    Attributes:
        point: Its entry point.
        problem: Why it cannot be used, as far as metadata shows; empty if it can.
        fingerprint: Hash of what decides the outcome of its probe, its settings excepted.
        module: Top-level name of its module, a key of `Scan.modules`.
        loose: Whether its files may change while its metadata does not: it is editable, or no
            installer has recorded it. A configured agent is not: its code belongs to us.
    """

    model_config = ConfigDict(frozen=True)
    point: InstalledEntryPoint
    problem: str
    fingerprint: str
    module: str
    loose: bool


class Scan(BaseModel):
    """Everything installed at one moment.

    Attributes:
        agents: Installed agents, sorted by name; a name that two distributions use comes twice.
        folders: The folders of ``sys.path`` and the definitions of configured agents, with their
            folder, as they were before anything else was read.
        environment: Hash of the metadata in *folders*: it changes with any distribution.
        modules: Top-level name of a module to its files.
        unreadable: Distributions whose metadata cannot be read, and why.
    """

    model_config = ConfigDict(frozen=True)
    agents: list[FoundAgent] = []
    folders: list[Mark] = []
    environment: str = ""
    modules: dict[str, list[Mark]] = {}
    unreadable: list[str] = []


def scan_installed(home: Path) -> Scan:
    """Read the metadata of all distributions, and size and time of the files of each agent.

    The definitions of configured agents are in *home*.
    """
    folders = marks_of(str(Path(path or ".").absolute()) for path in sys.path)
    definitions = [home / DEFINITIONS_FOLDER, *definition_files(home)]
    watched = [*folders, *marks_of(filter(_is_text, map(str, definitions)))]
    unreadable: list[str] = []
    points = installed_agents(home, unreadable)
    same_name: defaultdict[str, list[InstalledEntryPoint]] = defaultdict(list)
    for point in points:
        same_name[point.name].append(point)
    agents, modules = [], {}
    for point in points:
        top = point.target.partition(":")[0].partition(".")[0]
        if top not in modules:
            modules[top] = marks_of(_module_files(top))
        agents.append(
            FoundAgent(
                point=point,
                problem=registration_error(point, same_name[point.name], "agent"),
                fingerprint=_fingerprint(point, modules[top]),
                module=top,
                loose=point.definition is None and (not point.record or point.editable),
            )
        )
    environment = hash_of(_metadata_in(folder for folder, *_ in folders))
    return Scan(
        agents=agents,
        folders=watched,
        environment=environment,
        modules=modules,
        unreadable=unreadable,
    )


def is_current(scan: Scan) -> bool:
    """Whether no folder and no file has changed that *scan* has looked at.

    It does not see a file that is added below a folder of an editable package.
    """
    seen = [*scan.folders, *itertools.chain.from_iterable(scan.modules.values())]
    return marks_of(path for path, *_ in seen) == seen


def marks_of(paths: Iterable[str]) -> list[Mark]:
    """Time and size of each file, time of each folder."""
    marks: list[Mark] = []
    for path in paths:
        try:
            status = os.stat(path)  # noqa: PTH116 -- thousands of Path objects would be slow
        except OSError:
            marks.append((path, 0, 0))
        else:
            size = 0 if stat.S_ISDIR(status.st_mode) else status.st_size
            marks.append((path, status.st_mtime_ns, size))
    return marks


def hash_of(value: object) -> str:
    """Hash of *value*, which consists of JSON types."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def _metadata_in(folders: Iterable[str]) -> list[tuple[str, str, int]]:
    metadata = []
    for folder in folders:
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(_METADATA):
                    with suppress(OSError):  # a link to nowhere
                        metadata.append((folder, entry.name, entry.stat().st_mtime_ns))
    return sorted(metadata)


def _fingerprint(point: InstalledEntryPoint, files: list[Mark]) -> str:
    versions = [genesis_fp16.__version__, platform.python_version(), sys.prefix]
    facts = [point.name, point.target, point.distribution, point.version, point.record]
    return hash_of([*versions, *facts, str(point.root), files])


def _module_files(top: str) -> list[str]:
    """Paths of the code of the module or package *top*, as an import would find it."""
    try:
        spec = find_spec(top)  # of a top-level name: imports nothing
    except (ImportError, ValueError):
        return []
    if spec is None:
        return []
    if spec.submodule_search_locations is None:
        return [spec.origin] if spec.has_location and spec.origin else []
    code = (
        f"{parent}/{name}"
        for place in spec.submodule_search_locations
        for parent, _, names in os.walk(place)
        for name in names
        if name.endswith((".py", ".so", ".pyd"))
    )
    return sorted(path for path in itertools.islice(code, _MOST_FILES) if _is_text(path))


def _is_text(path: str) -> bool:
    """Whether *path* is text, as the path of a module is, and not other bytes."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
