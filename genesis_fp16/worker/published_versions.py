"""Keeps a version of each model that a run publishes, with the run and the data it came from."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from genesis_fp16.domain.run_spec import RunSpec
from genesis_fp16.plugins.model_versions import (
    DataFacts,
    ModelVersion,
    ModelVersionError,
    describe_published,
    keep_unrecorded,
    keep_version,
    publishing,
    read_versions,
    version_in_use,
)
from genesis_fp16.worker.collection import Collection
from infrastructure.agent_contract import Publication
from infrastructure.agent_contract.run_context import RunLogger

WAIT_SECONDS = 60.0  # for an operator's rollback


class PublishedVersions:
    """Versions of one agent's model, for a run that is about to publish.

    If a version cannot be kept, the run goes on: its model is published, and a notice says that
    nobody can go back to it later.
    """

    def __init__(self, spec: RunSpec, collection: Collection, logger: RunLogger) -> None:
        self._spec, self._collection, self._logger = spec, collection, logger
        self._replaced: str | None = None

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """Publish in the block; nobody rolls back meanwhile, and the model in use is kept.

        Raises:
            ModelVersionError: Another process has published, or rolled back, for a minute.
        """
        folder = self._spec.agent_folder
        with publishing(folder, wait_seconds=WAIT_SECONDS):
            try:
                keep_unrecorded(folder, now=time.time())
                self._replaced = self._find_replaced()
            except (OSError, ModelVersionError) as error:
                self._warn(error)
            yield

    def keep(self, publication: Publication) -> None:
        """Keep what the agent has just published; call it while `publishing`."""
        spec, folder = self._spec, self._spec.agent_folder
        try:
            files = describe_published(folder)
            if not files:  # the agent publishes elsewhere
                return
            version = ModelVersion(
                id=spec.run_id,
                run_id=spec.run_id,
                published_at=time.time(),
                replaced=self._replaced,
                reason=publication.reason,
                metrics=publication.metrics,
                data=self._data(),
                files=files,
            )
            keep_version(folder, version, keep=spec.keep_models)
        except (OSError, ModelVersionError) as error:
            self._warn(error)

    def _find_replaced(self) -> str | None:
        """The version that the run's model is about to replace."""
        folder, run_id = self._spec.agent_folder, self._spec.run_id
        versions = read_versions(folder, verify=False)
        in_use = version_in_use(folder, versions)
        facts = next((version.facts for version in versions if version.id == run_id), None)
        if in_use == run_id and facts is not None:  # an earlier attempt of the run has published
            return facts.replaced
        return in_use

    def _data(self) -> DataFacts:
        folder = self._spec.agent_folder / "replay"
        snapshot, buffer = self._collection.snapshot(folder), self._collection.buffer(folder)
        return DataFacts(
            transitions=len(self._collection.read(folder, snapshot)),
            size=sum(snapshot.lengths.values()),
            sha256=buffer.digest(snapshot),
            segments=snapshot.lengths,
        )

    def _warn(self, error: Exception) -> None:
        consequence = "genesis-fp16 models cannot bring this model back once it is replaced"
        self._logger.warning("model_version_not_kept", error=str(error), consequence=consequence)
