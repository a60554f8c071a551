"""The clusters that rounds are played on: a real Slurm, a real Ray, a Kubernetes API server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

from tests.genesis_fp16.executors.kubernetes_cluster import JobCluster, KubernetesCluster
from tests.genesis_fp16.executors.ray.ray_cluster import RayCluster
from tests.genesis_fp16.executors.slurm_cluster import SlurmCluster, running_cluster

SLURM_NODE_SECONDS = 6  # until a node that is silent counts as down
RAY_CPUS = 2  # of each node


class Cluster(Protocol):
    """What every engine suffers.

    Attributes:
        settings: The daemon's settings that name it.
        variables: Environment of the daemon.
    """

    settings: Mapping[str, object]
    variables: Mapping[str, str]

    def delete(self, job: str) -> None:
        """Delete a job by hand, with everything of it."""

    def unreachable(self) -> AbstractContextManager[None]:
        """Within the block the engine does not answer; jobs go on."""

    def full(self) -> AbstractContextManager[None]:
        """Within the block jobs wait."""

    def duplicate(self, job: str, command: list[str], folder: Path) -> None:
        """Start the *command* of a job once more."""

    def lose_node(self, job: str) -> Callable[[], None]:
        """Have the machine of *job* fail, with all that is on it; returns what brings it back."""


class Slurm:
    """See `Cluster`."""

    settings: Mapping[str, object] = {"GENESIS_EXECUTOR": "slurm"}

    def __init__(self, cluster: SlurmCluster) -> None:
        self.cluster = cluster
        self.variables: Mapping[str, str] = cluster.variables
        self.delete, self.unreachable, self.full = cluster.delete, cluster.unreachable, cluster.full

    def duplicate(self, job: str, command: list[str], folder: Path) -> None:
        """Another job, as ``scontrol requeue`` of one that runs would make."""
        options = (f"--job-name={job}-again", f"--chdir={folder}", f"--output={folder}/again.log")
        self.cluster.ask("sbatch", *options, f"--wrap=exec {' '.join(command)}")

    def lose_node(self, job: str) -> Callable[[], None]:
        """Kill slurmd and its jobs."""
        node = self.cluster.node_of(job)
        self.cluster.kill_node(node)
        return lambda: self.cluster.start_node(node)


class Ray:
    """See `Cluster`."""

    def __init__(self, cluster: RayCluster) -> None:
        self.cluster = cluster
        self.variables: Mapping[str, str] = {}
        self.delete, self.unreachable, self.full = cluster.delete, cluster.unreachable, cluster.full
        self.settings: Mapping[str, object] = {
            "GENESIS_EXECUTOR": "ray",
            "GENESIS_RAY_ADDRESS": cluster.line_address,
            "GENESIS_RAY_TOKEN_FILE": cluster.token_file,
        }

    def duplicate(self, job: str, command: list[str], folder: Path) -> None:
        """Another job with the same command."""
        self.cluster.submit(f"{job}-again", f"exec {' '.join(command)} >>{folder}/again.log 2>&1")

    def lose_node(self, job: str) -> Callable[[], None]:
        """Kill all processes of the worker node, or of the whole cluster if the job is there."""
        if self.cluster.is_on_head(job):
            self.cluster.kill_head()
            return self.cluster.start
        self.cluster.kill_worker()
        return self.cluster.add_worker


class Kubernetes:
    """See `Cluster`."""

    variables: Mapping[str, str] = {}

    def __init__(self, server: KubernetesCluster) -> None:
        self.server, jobs = server, JobCluster(server, Path())
        self.delete, self.unreachable, self.full = jobs.delete, jobs.unreachable, jobs.full
        self.settings: Mapping[str, object] = {
            "GENESIS_EXECUTOR": "kubernetes",
            "GENESIS_KUBERNETES_CONFIG": server.config,
            "GENESIS_KUBERNETES_IMAGE": "genesis-fp16:torture",
            "GENESIS_KUBERNETES_VOLUME_CLAIM": "home",
        }

    def duplicate(self, job: str, command: list[str], folder: Path) -> None:
        """A second pod, as a controller with an old view starts it."""
        del command, folder
        self.server.job("duplicate", job)

    def lose_node(self, job: str) -> Callable[[], None]:
        """The kubelet is silent and its containers are dead; nobody says so for a while."""
        self.server.node(silent=True)
        self.server.job("power_cut", job)
        return lambda: self.server.node(silent=False)


@contextmanager
def running(executor: str, folder: Path) -> Iterator[Any]:
    """The cluster of the *executor*; None for workers of the daemon's own machine."""
    if executor == "slurm":
        with running_cluster(SLURM_NODE_SECONDS) as slurm:
            yield Slurm(slurm)
    elif executor == "ray":
        ray = RayCluster(RAY_CPUS)
        try:
            yield Ray(ray)
        finally:
            ray.stop()
    elif executor == "kubernetes":
        folder.mkdir()
        with closing(KubernetesCluster(folder)) as server:
            yield Kubernetes(server)
    else:
        yield None
