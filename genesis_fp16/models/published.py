"""The published model of an agent on disk, its version, and the mark that shows a change."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn

from genesis_fp16.plugins.model_versions import (
    PUBLISHED,
    UNRECORDED,
    VERSIONS,
    read_versions,
    version_in_use,
)
from infrastructure.agent_contract.transition import TransitionSpec
from infrastructure.world_model import ModelFileError, NetworkShape, WorldModel
from infrastructure.world_model.model_files import BuildNetwork, load_spec

_INDEX = "model.json"


class Mark(NamedTuple):
    """State of a published model's files; a new version has another one."""

    inode: int
    changed_ns: int
    size: int
    versions_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedModel:
    """What is published.

    Attributes:
        model: The model; None if there is none, or none that may be loaded without plugin code.
        version: Id of its version; None without a model.
        problem: Why it cannot be used; empty if it can, or if there is none.
        own_network: Whether its network is the agent's own, which takes plugin code.
        spec: Specification of the model, also of one with the agent's own network; None without.
        mark: State of the files; None if there is no model.
    """

    model: WorldModel | None = None
    version: str | None = None
    problem: str = ""
    own_network: bool = False
    spec: TransitionSpec | None = None
    mark: Mark | None = None

    @property
    def is_recorded(self) -> bool:
        """Whether a kept version holds the model; one that was just published soon has one."""
        return not (self.version or "").startswith(UNRECORDED)


def mark_of(agent_folder: Path) -> Mark | None:
    """State of the files of the model published in *agent_folder*; None if there is none."""
    try:
        status = (agent_folder / PUBLISHED / _INDEX).stat()
    except OSError:
        return None
    try:
        versions_ns = (agent_folder / VERSIONS).stat().st_mtime_ns
    except OSError:
        versions_ns = 0
    return Mark(status.st_ino, status.st_mtime_ns, status.st_size, versions_ns)


def load_published(agent_folder: Path, build_network: BuildNetwork | None = None) -> PublishedModel:
    """Load the model and find its version; again if it was replaced meanwhile.

    Args:
        build_network: Builds a network of the agent's own; None to refuse one.
    """
    while True:
        mark = mark_of(agent_folder)
        loaded = _load(agent_folder, mark, build_network)
        if mark_of(agent_folder) == mark:
            return loaded


def _load(folder: Path, mark: Mark | None, build_network: BuildNetwork | None) -> PublishedModel:
    refused: list[NetworkShape] = []
    try:
        build = build_network or partial(_refuse_network, refused)
        model = WorldModel.load(folder / PUBLISHED, build)
        version = version_in_use(folder, read_versions(folder, verify=False))
        if version is None:
            index = (folder / PUBLISHED / _INDEX).read_bytes()
            version = f"{UNRECORDED}{hashlib.sha256(index).hexdigest()[:8]}"
    except FileNotFoundError:
        return PublishedModel(mark=mark)
    except (ModelFileError, OSError) as error:
        problem, spec = str(error), None
        if refused:
            problem = (
                "the published model has a network of the agent's own, whose code this process "
                "does not run"
            )
            with suppress(ModelFileError, OSError):  # replaced meanwhile: loaded again
                spec = load_spec(folder / PUBLISHED)
        return PublishedModel(problem=problem, own_network=bool(refused), spec=spec, mark=mark)
    return PublishedModel(model=model, version=version, spec=model.spec, mark=mark)


def _refuse_network(refused: list[NetworkShape], shape: NetworkShape) -> NoReturn:
    refused.append(shape)
    raise ValueError("it has a network of the agent's own")
