"""Where the rounds are played: the executor, the database, and how processes are started."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import psutil

from benchmarks.takeover.postgres import PostgresServer
from tests.e2e.job_server import JobServer
from tests.e2e.torture import clusters
from tests.e2e.torture.databases import Database, PostgresDatabase, SqliteDatabase
from tests.genesis_fp16.executors import slurm_cluster
from tests.patience import crowding

EXECUTORS = ("local", "slurm", "ray", "kubernetes")
DATABASES = ("sqlite", "postgres")
_PROGRAMS = {
    "postgres": ("initdb", "postgres"),
    "slurm": slurm_cluster.PROGRAMS,
    "kubernetes": ("openssl",),
}
_PACKAGES = {"postgres": ("psycopg",), "ray": ("ray",)}
_MOST_CROWDING = 4.0
_PYTHON = "remote-python"  # in the folder of a home


@dataclass(frozen=True)
class Stage:
    """One executor with one database.

    Attributes:
        executor: One of `EXECUTORS`.
        cluster: Its cluster; None for ``local``.
        server: The database's; None for SQLite.
        jobs: Forks launchers; None if there is no cluster, or if nothing is forked.
        real: Whether daemon and workers are started as in production instead of being forked.
        homes: Folder of all homes.
    """

    executor: str
    cluster: clusters.Cluster | None
    server: PostgresServer | None
    jobs: JobServer | None
    real: bool
    homes: Path

    @property
    def variables(self) -> Mapping[str, str]:
        """Environment of the daemon."""
        return {} if self.cluster is None else self.cluster.variables

    @property
    def obey_seconds(self) -> float:
        """In which a worker must obey the flag."""
        return 2.0 if self.cluster is None else 5.0

    @property
    def no_progress_seconds(self) -> float:
        """After which a silent worker is stopped; longer than a fault holds one, also here now."""
        seconds = 30.0 if self.executor == "ray" else 10.0
        return seconds * min(crowding(), _MOST_CROWDING)

    @property
    def patience(self) -> float:
        """How many times longer than a worker of this machine a job may take."""
        return 1.0 if self.cluster is None else 3.0

    def new_database(self, home: Path) -> Database:
        """The database of a new home."""
        return SqliteDatabase(home) if self.server is None else PostgresDatabase(self.server)

    def settings(self, folder: Path, environment: Mapping[str, str]) -> Mapping[str, object]:
        """Settings of the daemon in *folder*, whose workers need this environment."""
        if self.cluster is None:
            return {}
        path = folder / _PYTHON
        if self.jobs is not None:
            self.jobs.write_program(path, environment, folder)
        else:
            variables = " ".join(f"{k}={shlex.quote(v)}" for k, v in environment.items())
            path.write_text(
                f'#!/bin/sh\ncd {folder} && exec env {variables} {sys.executable} "$@"\n'
            )
            path.chmod(0o755)
        return {**self.cluster.settings, "GENESIS_REMOTE_PYTHON": path}

    def processes(self) -> list[psutil.Process]:
        """What descends from this process, without the servers and what belongs to them."""
        this_process = psutil.Process()
        descendants = this_process.children(recursive=True)
        if self.cluster is None and self.server is None:
            return descendants
        forked = this_process.cmdline()  # what is forked has the command line of this process
        ours = []
        for process in descendants:
            with suppress(psutil.Error):
                line = process.cmdline()
                if line == forked or any(mark in part for part in line for mark in self._marks):
                    ours.append(process)
        return [process for process in ours if self.jobs is None or process.pid != self.jobs.pid]

    @property
    def _marks(self) -> tuple[str, ...]:
        """In the command lines of what is started and not forked."""
        return (str(self.homes), "genesis_fp16.worker", "bin/genesis-fp16")


def missing(executor: str, database: str) -> str:
    """What such a stage needs and this machine lacks; empty if it lacks nothing."""
    programs = (*_PROGRAMS.get(executor, ()), *_PROGRAMS.get(database, ()))
    packages = (*_PACKAGES.get(executor, ()), *_PACKAGES.get(database, ()))
    lacks = [program for program in programs if shutil.which(program) is None]
    lacks += [f"the Python package {package}" for package in packages if find_spec(package) is None]
    if executor == "slurm" and os.geteuid() != 0:
        lacks.append("root's rights")
    return f"{executor} with {database} needs {', '.join(lacks)}" if lacks else ""


@contextmanager
def open_stage(executor: str, database: str, folder: Path, *, real: bool) -> Iterator[Stage]:
    """Start the servers of a stage whose homes are in *folder*/homes; they end with the block."""
    with ExitStack() as stack:
        servers = folder / "servers"
        servers.mkdir()
        server = None
        if database == "postgres":
            server = stack.enter_context(closing(PostgresServer()))
        cluster = stack.enter_context(clusters.running(executor, servers / "kubernetes"))
        jobs = None
        if cluster is not None and not real:
            jobs = stack.enter_context(closing(JobServer(servers)))
        yield Stage(executor, cluster, server, jobs, real, folder / "homes")
