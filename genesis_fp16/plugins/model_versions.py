"""Kept versions of an agent's published model: taken when it is published, put back on demand.

``versions/<id>/`` in the agent's folder holds ``version.json`` and, in ``files/``, a copy of all
that was in ``published/``. What is in use is what ``published/`` holds; nothing else decides.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, Field, field_validator

from genesis_fp16.domain.errors import GenesisError
from infrastructure.files import (
    JsonFileError,
    flush_folder,
    hash_file,
    open_regular,
    read_model,
    remove_abandoned,
    write_model,
)

PUBLISHED, VERSIONS = "published", "versions"
UNRECORDED = "unrecorded-"  # begins the id of a model that was published before versions were kept
_FACTS, _FILES, _LOCK = "version.json", "files", ".publishing.lock"
_ID = r"[0-9A-Za-z][0-9A-Za-z-]{0,63}"
_CHUNK = 1 << 20  # bytes
_MOST_FACTS_BYTES = 1 << 24


class ModelVersionError(GenesisError, ValueError):
    """A version cannot be used: it is unknown or damaged, or the agent is publishing now."""

    exit_code = os.EX_DATAERR


class FileFacts(BaseModel):
    """Size in bytes and hash of a file."""

    model_config = ConfigDict(frozen=True)
    size: int
    sha256: str


class DataFacts(BaseModel):
    """The data that a model was trained on.

    Attributes:
        transitions: Number of transitions.
        size: Bytes that they take in the replay buffer.
        sha256: Hash of these bytes.
        segments: Length of each segment of the replay buffer; empty for earlier releases.
    """

    model_config = ConfigDict(frozen=True)
    transitions: int
    size: int
    sha256: str
    segments: Mapping[str, int] = {}


class ModelVersion(BaseModel):
    """A kept version of the published model.

    Attributes:
        id: The run's id, or one that begins with `UNRECORDED`.
        run_id: Run that published it; None if that is not known.
        published_at: When it was published, in Unix seconds.
        replaced: Id of the version that was in use before; None if there was none.
        reason: Why it was published.
        metrics: Metrics of its publication.
        data: What it was trained on; None if that is not known.
        files: Path below ``published/`` to the facts of the file, in the order of writing.
    """

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")
    format: Literal[1] = 1
    id: Annotated[str, Field(pattern=f"^{_ID}$")]
    run_id: str | None
    published_at: float
    replaced: str | None
    reason: str
    metrics: Mapping[str, float]
    data: DataFacts | None
    files: Annotated[Mapping[str, FileFacts], Field(min_length=1)]

    @field_validator("files")
    @classmethod
    def _check_paths(cls, files: Mapping[str, FileFacts]) -> Mapping[str, FileFacts]:
        for name in files:
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or str(path) != name or "\0" in name:
                raise ValueError(f"{name!r} is not a path below published/")
        return files


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptVersion:
    """A folder of ``versions/``.

    Attributes:
        id: Name of the folder.
        facts: What is known of it; None if ``version.json`` cannot be read.
        problem: Why it cannot be put back; empty if it can.
    """

    id: str
    facts: ModelVersion | None
    problem: str = ""


@contextmanager
def publishing(agent_folder: Path, *, wait_seconds: float) -> Iterator[None]:
    """Keep others from publishing, and from putting a version back, in the block.

    Raises:
        ModelVersionError: Another process has been doing so for *wait_seconds*.
        OSError: The lock cannot be created.
    """
    agent_folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(agent_folder / _LOCK, timeout=wait_seconds)
    try:
        lock.acquire()
    except Timeout:
        raise ModelVersionError(
            f"a run of {agent_folder.name} is publishing a model now, or a version is being put "
            "back: try again when that has ended"
        ) from None
    try:
        yield
    finally:
        lock.release()


def read_versions(agent_folder: Path, *, verify: bool = True) -> list[KeptVersion]:
    """The kept versions, the last published first; unreadable ones come last.

    With *verify*, the hash of each file is checked, otherwise only its size.
    """
    versions = [_read(folder, verify=verify) for folder in _folders(agent_folder)]
    return sorted(versions, key=lambda version: (_published_at(version), version.id), reverse=True)


def kept_runs(agent_folder: Path) -> set[str]:
    """Ids of the kept versions, which are the ids of their runs where these are known."""
    return {folder.name for folder in _folders(agent_folder)}


def describe_published(agent_folder: Path) -> dict[str, FileFacts]:
    """Path below ``published/`` to the facts of each file, in the order in which they were written.

    Of files written at once, the one that may name others, which is JSON, comes last.

    Raises:
        OSError: A file cannot be read.
    """
    folder = agent_folder / PUBLISHED

    def written(path: Path) -> tuple[int, int, bool, str]:
        return path.stat().st_mtime_ns, -len(path.parts), path.suffix == ".json", str(path)

    paths = sorted(_paths(folder), key=written)
    return {path.relative_to(folder).as_posix(): _facts_of(path) for path in paths}


def version_in_use(agent_folder: Path, versions: list[KeptVersion]) -> str | None:
    """Id of the version whose files ``published/`` holds; None if it holds none of them."""
    held = describe_published(agent_folder)
    matching = [
        version.facts
        for version in versions
        if version.facts is not None and version.facts.files.items() <= held.items()
    ]
    best = max(
        matching, key=lambda version: (len(version.files), version.published_at), default=None
    )
    return best.id if best is not None else None


def keep_unrecorded(agent_folder: Path, *, now: float) -> None:
    """Keep the published model if no kept version holds it, such as one of an older release.

    Call it while `publishing`.

    Raises:
        OSError: It could not be copied.
    """
    files = describe_published(agent_folder)
    if not files or version_in_use(agent_folder, read_versions(agent_folder, verify=False)):
        return
    digest = hashlib.sha256("".join(file.sha256 for file in files.values()).encode())
    version = ModelVersion(
        id=f"{UNRECORDED}{digest.hexdigest()[:8]}",
        run_id=None,
        published_at=min(now, _newest(agent_folder / PUBLISHED)),
        replaced=None,
        reason="published before its run was recorded",
        metrics={},
        data=None,
        files=files,
    )
    _write(agent_folder, version)


def keep_version(agent_folder: Path, version: ModelVersion, *, keep: int) -> None:
    """Keep what is in ``published/`` as *version*; of all, the newest *keep* stay.

    The one that it replaced stays, too, before newer ones. A file that an older version holds is
    kept once. Call it while `publishing`.

    Raises:
        OSError: It could not be copied; no version was added, none removed.
    """
    _write(agent_folder, version)
    earlier = [kept for kept in read_versions(agent_folder, verify=False) if kept.id != version.id]
    earlier.sort(key=lambda kept: kept.id != version.replaced)  # stable: the newest first
    for surplus in earlier[keep - 1 :]:
        shutil.rmtree(agent_folder / VERSIONS / surplus.id, ignore_errors=True)


def put_back(agent_folder: Path, version_id: str) -> ModelVersion:
    """Make a kept version the one in use, by writing its files as the agent wrote them.

    All files are copied first, then renamed in the order in which the agent wrote them: an agent
    whose last file names the others has the old model in use, or the new one, at any moment. Files
    of other versions are removed at the end. Interrupted, it may be called again. Call it while
    `publishing`.

    Raises:
        ModelVersionError: The version is unknown or damaged; nothing was changed.
        OSError: A file could not be copied; nothing was changed.
    """
    version = find_version(agent_folder, version_id)
    source, target = agent_folder / VERSIONS / version.id / _FILES, agent_folder / PUBLISHED
    target.mkdir(exist_ok=True)
    for where, _, _ in os.walk(target):  # of an interrupted call
        remove_abandoned(Path(where), older_seconds=0.0)
    before, copies = describe_published(agent_folder), dict[Path, Path]()
    try:
        for name, facts in version.files.items():
            path = target / name
            if before.get(name) != facts:
                path.parent.mkdir(parents=True, exist_ok=True)
                copies[path] = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
                _copy(source / name, copies[path], facts)
        for path, copy in copies.items():
            copy.replace(path)
            flush_folder(path.parent)
    finally:
        for copy in copies.values():
            copy.unlink(missing_ok=True)
        _remove_empty(target)
    for name in before.keys() - version.files.keys():
        (target / name).unlink(missing_ok=True)
    _remove_empty(target)
    return version


def withdraw(agent_folder: Path) -> None:
    """Leave no model in use; what is in use must be kept as a version. Call it while `publishing`.

    Files go in the reverse order of their writing: an agent whose last file names the others has
    no model from the first moment on.

    Raises:
        OSError: A file could not be removed.
    """
    folder = agent_folder / PUBLISHED
    for name in reversed(describe_published(agent_folder)):
        (folder / name).unlink(missing_ok=True)
    _remove_empty(folder)
    flush_folder(folder)


def find_version(agent_folder: Path, version_id: str) -> ModelVersion:
    """The version, with all its files as they were.

    Raises:
        ModelVersionError: It is unknown or damaged; the message names what can be put back.
    """
    known = sorted(kept_runs(agent_folder))
    if version_id not in known:
        kept = f"kept: {', '.join(known)}" if known else "none is kept"
        raise ModelVersionError(f"{agent_folder.name} has no version {version_id[:80]!r}; {kept}")
    version = _read(agent_folder / VERSIONS / version_id, verify=True)
    if version.facts is None or version.problem:
        raise ModelVersionError(
            f"version {version_id} of {agent_folder.name} is damaged and was not put back: "
            f"{version.problem}; choose another one (genesis-fp16 models list {agent_folder.name})"
        )
    return version.facts


def _folders(agent_folder: Path) -> list[Path]:
    try:
        paths = list((agent_folder / VERSIONS).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [path for path in paths if not path.name.startswith(".") and path.is_dir()]


def _read(folder: Path, *, verify: bool) -> KeptVersion:
    try:
        facts = read_model(folder / _FACTS, ModelVersion, limit=_MOST_FACTS_BYTES)
        if facts.id != folder.name:
            raise JsonFileError(folder / _FACTS, f"it describes {facts.id}")
    except (OSError, JsonFileError) as error:
        return KeptVersion(id=folder.name, facts=None, problem=str(error))
    for name, expected in facts.files.items():
        path = folder / _FILES / name
        try:
            size = path.stat().st_size
            same = size == expected.size and (not verify or _facts_of(path) == expected)
            problem = "" if same else f"{path} was altered"
        except OSError as error:
            problem = f"{path}: {error.strerror}"
        if problem:
            return KeptVersion(id=folder.name, facts=facts, problem=problem)
    return KeptVersion(id=folder.name, facts=facts)


def _published_at(version: KeptVersion) -> float:
    return version.facts.published_at if version.facts is not None else 0.0


def _paths(folder: Path) -> list[Path]:
    """Regular files below *folder*, without temporary ones."""
    return [
        Path(where) / name
        for where, _, names in os.walk(folder)
        for name in names
        if not name.startswith(".") and (Path(where) / name).is_file()
    ]


def _newest(folder: Path) -> float:
    return max((path.stat().st_mtime for path in _paths(folder)), default=0.0)


def _facts_of(path: Path) -> FileFacts:
    content = hash_file(path)
    return FileFacts(size=content.bytes, sha256=content.sha256)


def _write(agent_folder: Path, version: ModelVersion) -> None:
    """Write the folder of *version*, complete or not at all."""
    versions = agent_folder / VERSIONS
    versions.mkdir(parents=True, exist_ok=True)
    for abandoned in versions.glob(".*"):  # of a writer that was killed
        shutil.rmtree(abandoned, ignore_errors=True)
    kept_files = {
        facts: versions / earlier.id / _FILES / name
        for earlier in read_versions(agent_folder, verify=False)
        if earlier.facts is not None and not earlier.problem
        for name, facts in earlier.facts.files.items()
    }
    temporary = versions / f".{version.id}.{secrets.token_hex(4)}"
    try:
        for name, facts in version.files.items():
            path = temporary / _FILES / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not _linked(kept_files.get(facts), path, facts):
                _copy(agent_folder / PUBLISHED / name, path, facts)
        write_model(temporary / _FACTS, version, indent=1)
        if (versions / version.id).exists():  # an earlier attempt of the run has published, too
            shutil.rmtree(versions / version.id)
        temporary.rename(versions / version.id)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    flush_folder(versions)


def _linked(kept: Path | None, path: Path, facts: FileFacts) -> bool:
    """Link the *kept* file of an earlier version to *path*, if it is as it was."""
    with suppress(OSError):
        if kept is not None and _facts_of(kept) == facts:
            os.link(kept, path)
            return True
    return False


def _copy(source: Path, target: Path, facts: FileFacts) -> None:
    """Copy *source* to *target*, a new file.

    Raises:
        ModelVersionError: The content of *source* is another one by now.
        OSError: The file could not be written.
    """
    digest = hashlib.sha256()
    with open_regular(source) as read, target.open("xb") as written:
        while chunk := read.read(_CHUNK):
            digest.update(chunk)
            written.write(chunk)
        written.flush()
        os.fsync(written.fileno())
    if digest.hexdigest() != facts.sha256:
        raise ModelVersionError(f"{source} changed while it was copied: try again")


def _remove_empty(folder: Path) -> None:
    for where, _, _ in os.walk(folder, topdown=False):
        if Path(where) != folder:
            with suppress(OSError):  # it is not empty
                Path(where).rmdir()
