"""The side of a predict-server: fetches models, sends what its predictor acknowledged."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import structlog
from pydantic import BaseModel, ValidationError

from genesis_fp16.daemon.predictors_elsewhere.objects import (
    MANIFEST,
    SERVER,
    Chunk,
    Manifest,
    SharedModel,
)
from genesis_fp16.plugins.model_versions import PUBLISHED, VERSIONS, publishing
from genesis_fp16.system.bucket import Bucket, BucketError
from infrastructure.decisions.log import LOG_FOLDER, segment_path, segments
from infrastructure.files import (
    flush_folder,
    hash_file,
    read_model,
    write_atomically,
    write_model,
)
from infrastructure.trajectories.segments import whole_length

CHUNK_BYTES = 4 << 20
_STATE, _MOST_STATE_BYTES = "sent.json", 1 << 20  # beside the log
_SERVER = "predict-server.id"

log = structlog.get_logger()


class _Sent(BaseModel):
    """How far an agent's log was sent."""

    segment: int = 1
    offset: int = 0


class ServerSide:
    """Models from the bucket, outcomes to it.

    Args:
        home: Folder of this machine for models and logs.
        bucket: Bucket of the predictors elsewhere.

    Attributes:
        server: Random name of this folder.
        agents: Names of the agents of the last manifest.
    """

    def __init__(self, home: Path, bucket: Bucket) -> None:
        self._home, self._bucket = home, bucket
        self._known: dict[str, SharedModel] = {}
        self.agents: list[str] = []
        home.mkdir(parents=True, exist_ok=True)
        self.server = _server_id(home / _SERVER)

    def step(self) -> None:
        """Exchange what is new.

        Raises:
            OSError, ValueError: The bucket or the disk refuses, or there is no manifest.
        """
        self.send()
        self._fetch_models()

    def send(self) -> None:
        """Send what was acknowledged and is not in the bucket.

        Raises:
            OSError: The bucket refuses; the rest is sent later.
        """
        for folder in (self._home / "agents").glob(f"*/{LOG_FOLDER}"):
            self._send_log(folder.parent.name, folder)

    def _send_log(self, agent: str, folder: Path) -> None:
        try:
            sent = read_model(folder / _STATE, _Sent, limit=_MOST_STATE_BYTES)
        except FileNotFoundError:
            sent = _Sent()
        for number in segments(folder):
            if number < sent.segment:
                continue
            if number > sent.segment:
                sent = _Sent(segment=number)
            path = segment_path(folder, number)
            whole = _durable_length(path)
            while sent.offset < whole:
                end = min(whole, sent.offset + CHUNK_BYTES)
                if (cut := whole_length(path, end)) > sent.offset:
                    end = cut  # else a single line is longer
                with path.open("rb") as file:
                    file.seek(sent.offset)
                    content = file.read(end - sent.offset)
                chunk = Chunk(self.server, agent, number, sent.offset)
                self._bucket.write(chunk.name, content)
                sent = _Sent(segment=number, offset=end)
                write_model(folder / _STATE, sent)

    def _fetch_models(self) -> None:
        content = self._bucket.read(MANIFEST)
        if content is None:
            raise BucketError(
                f"{self._bucket.url} has no models: set GENESIS_SHARED_URL and "
                "GENESIS_PREDICT_SHARED=true in the daemon's settings"
            )
        try:
            manifest = Manifest.model_validate_json(content)
        except ValidationError as error:
            raise ValueError(f"{self._bucket.url}/{MANIFEST} cannot be read: {error}") from None
        for agent, model in manifest.agents.items():
            if self._known.get(agent) != model:
                self._fetch_model(self._home / "agents" / agent, model)
                self._known[agent] = model
                version = model.version.id if model.version is not None else "unrecorded"
                log.info("model_fetched", agent=agent, version=version)
        for agent in self._known.keys() - manifest.agents.keys():
            (self._home / "agents" / agent / PUBLISHED / "model.json").unlink(missing_ok=True)
            del self._known[agent]
        self.agents = sorted(manifest.agents)

    def _fetch_model(self, folder: Path, model: SharedModel) -> None:
        """Replace the model in *folder*; the file that names the others comes last."""
        with publishing(folder, wait_seconds=10.0):
            if model.version is not None:
                facts = folder / VERSIONS / model.version.id / "version.json"
                facts.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(facts, model.version.model_dump_json())
            published, fetched = folder / PUBLISHED, list[tuple[Path, Path]]()
            published.mkdir(parents=True, exist_ok=True)
            for name, expected in model.files.items():
                path, part = published / name, published / f".{name}.part"
                self._bucket.download(f"{model.place}/{name}", part, expected.size)
                if hash_file(part).sha256 != expected.sha256:
                    raise BucketError(f"{self._bucket.url}/{model.place}/{name} was altered")
                fetched.append((part, path))
            for part, path in fetched:
                part.replace(path)
                flush_folder(published)
            for path in published.glob("[!.]*"):
                if path.name not in model.files:
                    path.unlink()


def _durable_length(path: Path) -> int:
    """Length of the whole lines of *path* that are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return whole_length(path, size)


def _server_id(path: Path) -> str:
    """Name of the folder that *path* lies in; made with the first call."""
    try:
        name = path.read_text().strip()
    except FileNotFoundError:
        name = secrets.token_hex(8)
        write_atomically(path, f"{name}\n")
    if not SERVER.fullmatch(name):
        raise ValueError(f"{path} is damaged: restore it from a copy, or begin with a new folder")
    return name
