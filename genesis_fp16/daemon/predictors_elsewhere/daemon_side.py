"""The daemon's side: writes published models to the bucket, and fetches outcomes from it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from genesis_fp16.daemon.predictors_elsewhere.objects import (
    FILE,
    MANIFEST,
    OUTCOMES,
    Chunk,
    Manifest,
    SharedModel,
)
from genesis_fp16.plugins.model_versions import (
    PUBLISHED,
    VERSIONS,
    describe_published,
    read_versions,
    version_in_use,
)
from genesis_fp16.system.bucket import Bucket
from infrastructure.agent_contract.agent import AGENT_NAME
from infrastructure.decisions.log import LOGS_ELSEWHERE, segment_path
from infrastructure.files import flush_folder

_Signature = tuple[tuple[str, int, int, int], ...]


class DaemonSide:
    """Models to the bucket, outcomes from it.

    Args:
        home: GENESIS_HOME.
        bucket: Bucket of the predictors elsewhere.
    """

    def __init__(self, home: Path, bucket: Bucket) -> None:
        self._agents, self._bucket = home / "agents", bucket
        self._signatures: dict[str, _Signature] = {}
        self._manifest: Manifest | None = None

    def step(self) -> None:
        """Exchange what is new.

        Raises:
            OSError: The bucket or the disk refuses; call again.
        """
        self._fetch_outcomes()
        self._write_models()

    def _write_models(self) -> None:
        names = sorted(path.name for path in self._agents.glob("*") if _is_agent(path))
        signatures = {name: _signature(self._agents / name) for name in names}
        if self._manifest is not None and signatures == self._signatures:
            return
        models = dict[str, SharedModel]()
        before = self._manifest.agents if self._manifest is not None else {}
        for name, signature in signatures.items():
            if name in before and signature == self._signatures.get(name):
                models[name] = before[name]
            elif (model := self._write_model(name, before.get(name))) is not None:
                models[name] = model
        manifest = Manifest(agents=models)
        self._bucket.write(MANIFEST, manifest.model_dump_json().encode())
        old = {model.place for model in before.values()}
        for place in old - {model.place for model in models.values()}:
            self._bucket.delete_all(place)
        self._manifest, self._signatures = manifest, signatures

    def _write_model(self, agent: str, before: SharedModel | None) -> SharedModel | None:
        folder = self._agents / agent
        try:
            files = describe_published(folder)
            version_id = version_in_use(folder, versions := read_versions(folder, verify=False))
        except FileNotFoundError as error:  # it is being published: the next look finds it whole
            raise OSError(f"the model of {agent} is being published: {error}") from error
        if not files or not all(FILE.fullmatch(name) for name in files):
            return None  # nothing, or what only the agent's own code reads
        described = "".join(f"{name} {facts.sha256}\n" for name, facts in files.items())
        digest = hashlib.sha256(described.encode()).hexdigest()[:16]
        version = next((each.facts for each in versions if each.id == version_id), None)
        model = SharedModel(place=f"models/{agent}/{digest}", files=files, version=version)
        if before is None or before.place != model.place:
            for name in files:
                self._bucket.upload(folder / PUBLISHED / name, f"{model.place}/{name}")
        return model

    def _fetch_outcomes(self) -> None:
        """Append chunks to copies of the servers' logs; those that are on the disk are deleted.

        A chunk that is fetched twice is written twice at the same place.
        """
        chunks = sorted(
            chunk for name in self._bucket.names(OUTCOMES) if (chunk := Chunk.parse(name))
        )
        for chunk in chunks:
            folder = self._agents / chunk.agent / LOGS_ELSEWHERE / chunk.server
            path = segment_path(folder, chunk.segment)
            size = path.stat().st_size if path.exists() else 0
            if chunk.offset > size or not (self._agents / chunk.agent).is_dir():
                continue  # an earlier one has not come yet, or the agent is not known here
            content = self._bucket.read(chunk.name)
            if content is None:
                continue
            if chunk.offset + len(content) > size:
                _write_at(path, chunk.offset, content, size)
            self._bucket.delete([chunk.name])


def _write_at(path: Path, offset: int, content: bytes, size: int) -> None:
    """Write what is new of *content*, which begins at *offset*, to *path* of *size* bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        os.pwrite(descriptor, content[size - offset :], size)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    flush_folder(path.parent)


def _is_agent(path: Path) -> bool:
    return AGENT_NAME.fullmatch(path.name) is not None and (path / PUBLISHED).is_dir()


def _signature(folder: Path) -> _Signature:
    """Changes with the published files and with the kept versions."""
    found = []
    for path in (folder / VERSIONS, *sorted((folder / PUBLISHED).glob("[!.]*"))):
        try:
            status = path.stat()
        except OSError:
            continue
        found.append((path.name, status.st_ino, status.st_mtime_ns, status.st_size))
    return tuple(found)
