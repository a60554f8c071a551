"""What every executor keeps, with jobs that share a bucket with the daemon, not a folder."""

import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from genesis_fp16.executors.bucket import Mirrors
from genesis_fp16.executors.remote import RemoteExecutor
from genesis_fp16.system.bucket import Bucket
from tests.genesis_fp16.executors.contract import ExecutorContract, remote_executor
from tests.genesis_fp16.executors.process_engine import ProcessCluster

pytestmark = pytest.mark.process

CLOSE_SECONDS = 20.0


class BucketCluster(ProcessCluster):
    """Jobs as processes, each with a scratch home of its own."""

    def __init__(self, bucket: Bucket, home: Path) -> None:
        super().__init__()
        self.bucket, self._home = bucket, home
        self._mirrors: Mirrors | None = None

    def close(self) -> None:
        """Wait for the jobs; kill one that waits for a daemon or a bucket."""
        for name, process in self.jobs.items():
            try:
                process.wait(CLOSE_SECONDS)
            except subprocess.TimeoutExpired:
                self.delete(name)

    def executor(self, worker: tuple[str, ...]) -> RemoteExecutor:
        """That of the next daemon: the threads of the one before end, as they do by its death."""
        if self._mirrors is not None:
            self._mirrors.close(5.0)
        self._mirrors = Mirrors(self.bucket, self._home)
        return remote_executor(self.engine(), worker, self._mirrors)


@pytest.fixture
def cluster(bucket: Bucket, home_settings) -> Iterator[BucketCluster]:
    with closing(BucketCluster(bucket, home_settings.home)) as cluster:
        yield cluster


class TestContract(ExecutorContract):
    """See `ExecutorContract`; `test_mirror` has what differs from a shared folder."""
