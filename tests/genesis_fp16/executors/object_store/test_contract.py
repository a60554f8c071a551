"""What every executor keeps, with jobs that share an object store with the daemon, not a folder."""

import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from genesis_fp16.executors.object_store import Mirrors
from genesis_fp16.executors.remote import RemoteExecutor
from genesis_fp16.system.object_store import ObjectStore
from tests.genesis_fp16.executors.contract import ExecutorContract, remote_executor
from tests.genesis_fp16.executors.process_engine import ProcessCluster

pytestmark = pytest.mark.process

CLOSE_SECONDS = 20.0


class StoreCluster(ProcessCluster):
    """Jobs as processes, each with a scratch home of its own."""

    def __init__(self, store: ObjectStore, home: Path) -> None:
        super().__init__()
        self.store, self._home = store, home
        self._mirrors: Mirrors | None = None

    def close(self) -> None:
        """Wait for the jobs; kill one that waits for a daemon or a store."""
        for name, process in self.jobs.items():
            try:
                process.wait(CLOSE_SECONDS)
            except subprocess.TimeoutExpired:
                self.delete(name)

    def executor(self, worker: tuple[str, ...]) -> RemoteExecutor:
        """That of the next daemon: the threads of the one before end, as they do by its death."""
        if self._mirrors is not None:
            self._mirrors.close(5.0)
        self._mirrors = Mirrors(self.store, self._home)
        return remote_executor(self.engine(), worker, self._mirrors)


@pytest.fixture
def cluster(store: ObjectStore, home_settings) -> Iterator[StoreCluster]:
    with closing(StoreCluster(store, home_settings.home)) as cluster:
        yield cluster


class TestContract(ExecutorContract):
    """See `ExecutorContract`; `test_mirror` has what differs from a shared folder."""
