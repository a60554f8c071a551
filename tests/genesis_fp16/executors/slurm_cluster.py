"""A real Slurm on this machine: munged, slurmctld and two slurmd, up in seconds, as root."""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from benchmarks.measuring.ports import free_port
from genesis_fp16.executors.remote import RemoteExecutor
from genesis_fp16.executors.slurm import SlurmEngine
from tests.genesis_fp16.executors.contract import remote_executor
from tests.patience import wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
NODES = ("n1", "n2")
NODE_SECONDS = 180.0  # for a node to be back
CPUS = 8  # of each node; claimed, not there


class SlurmCluster:
    """Two nodes, n1 and n2, both on this machine.

    Args:
        node_timeout_seconds: Time after which slurmctld counts a silent node as down.

    Attributes:
        variables: Environment that makes Slurm's commands use this cluster.
    """

    def __init__(self, folder: Path, node_timeout_seconds: int = 30) -> None:
        self._folder, self._node_timeout = folder, node_timeout_seconds
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._port, self._first_job = free_port(), 1
        self.variables = {"SLURM_CONF": str(folder / "slurm.conf")}
        self._write_configuration()

    def _write_configuration(self) -> None:
        folder, host = self._folder, socket.gethostname().partition(".")[0]
        for name in ("state", *NODES):
            (folder / name).mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} "
            f"CPUs={CPUS} RealMemory=2000 State=UNKNOWN"
            for name in NODES
        )
        text = f"""\
            ClusterName=tests
            SlurmctldHost={host}(127.0.0.1)
            SlurmctldPort={self._port}
            SlurmUser={getpass.getuser()}
            SlurmdUser={getpass.getuser()}
            AuthType=auth/munge
            AuthInfo=socket={folder}/munge.socket
            CredType=cred/munge
            StateSaveLocation={folder}/state
            SlurmdSpoolDir={folder}/%n
            SlurmctldPidFile={folder}/slurmctld.pid
            SlurmdPidFile={folder}/slurmd-%n.pid
            SlurmctldLogFile={folder}/slurmctld.log
            SlurmdLogFile={folder}/slurmd-%n.log
            ProctrackType=proctrack/pgid
            TaskPlugin=task/none
            SwitchType=switch/none
            MpiDefault=none
            SelectType=select/cons_tres
            SelectTypeParameters=CR_CPU
            SchedulerType=sched/backfill
            SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0
            ReturnToService=2
            SlurmdParameters=config_overrides
            KillWait=5
            PreemptType=preempt/partition_prio
            PreemptMode=CANCEL
            MinJobAge=300
            SlurmctldTimeout=30
            SlurmdTimeout={self._node_timeout}
            TCPTimeout=2
            FirstJobId={self._first_job}
            """
        configuration = textwrap.dedent(text) + nodes
        everywhere = f"Nodes={','.join(NODES)} State=UP"
        configuration += f"\nPartitionName=main {everywhere} Default=YES PriorityTier=1\n"
        configuration += f"PartitionName=urgent {everywhere} PriorityTier=9\n"
        (folder / "slurm.conf").write_text(configuration)

    def start(self) -> None:
        folder = self._folder
        self._daemons["munged"] = self._spawn(
            *("munged", "--foreground", "--force", f"--key-file={folder}/munge.key"),
            *(f"--socket={folder}/munge.socket", f"--pid-file={folder}/munged.pid"),
            *(f"--seed-file={folder}/munged.seed", f"--log-file={folder}/munged.log"),
        )
        wait_until((folder / "munge.socket").exists, "munged")
        self._start_controller()
        for name in NODES:
            self._start_node(name)
        wait_until(self._has_nodes, f"two nodes, see {folder}", idle_seconds=60)

    def _start_node(self, name: str) -> None:
        self._daemons[name] = self._spawn("slurmd", "-D", "-N", name)

    def _start_controller(self, *options: str) -> None:
        self._daemons["slurmctld"] = self._spawn("slurmctld", "-D", *options)
        wait_until(self._answers, f"slurmctld, see {self._folder}")

    def _spawn(self, *command: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"{Path(command[0]).name}.out").open("ab") as log:
            return subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, **self.variables},
            )

    def ask(self, *command: str) -> str:
        """Output of one of Slurm's commands."""
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **self.variables},
            timeout=120,
        )
        return done.stdout

    def _answers(self) -> bool:
        return "UP" in self.ask("scontrol", "ping")

    def _has_nodes(self) -> bool:
        """Whether both nodes have registered and take jobs; a state of one that has not has a *."""
        states = self.ask(
            "sinfo", "--noheader", "--Node", "--partition=main", "--format=%T"
        ).split()
        return len(states) == 2 and {*states} <= {"idle", "mixed", "allocated"}

    def executor(self, worker: tuple[str, ...]) -> RemoteExecutor:
        return remote_executor(self.engine(), worker)

    def engine(self) -> SlurmEngine:
        return SlurmEngine()

    def delete(self, job: str) -> None:
        self.ask("scancel", "--full", "--signal=KILL", f"--name={job}")

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        """Stop slurmctld; slurmd and the jobs go on."""
        self._end("slurmctld")
        try:
            yield
        finally:
            self._start_controller()
            wait_until(self._has_nodes, f"the nodes to be back, see {self._folder}")

    def kill_controller(self, *, keep_state: bool = True) -> None:
        """Kill slurmctld and start it again; without its state it has forgotten all jobs."""
        self._end("slurmctld", signal.SIGKILL)
        self._skip_job_numbers()
        self._start_controller(*([] if keep_state else ["-c"]))
        wait_until(self._has_nodes, f"the nodes to be back, see {self._folder}")

    def _skip_job_numbers(self) -> None:
        """Have the next slurmctld begin with other numbers of jobs.

        One that has lost its last seconds gives a number again. A node that still knows it refuses
        the job and drains itself.
        """
        path = self._folder / "slurm.conf"
        before, self._first_job = self._first_job, self._first_job + 10_000
        text = path.read_text()
        path.write_text(text.replace(f"FirstJobId={before}\n", f"FirstJobId={self._first_job}\n"))

    def kill_node(self, name: str, *, jobs: bool = True) -> None:
        """Kill slurmd of the node, and by default all its *jobs* at once, as a power cut does."""
        listed = self.ask("squeue", "--noheader", f"--nodelist={name}", "--format=%A").split()
        self._end(name, signal.SIGKILL)
        titles = tuple(f"slurmstepd: [{job}." for job in listed if jobs)
        for process in psutil.process_iter(["cmdline"]):
            title = " ".join(process.info["cmdline"] or ())
            if titles and title.startswith(titles) and self._is_ours(process):
                _kill_tree(process)

    def _is_ours(self, step: psutil.Process) -> bool:
        """Whether *step* writes the log of a node of this cluster: others number jobs alike."""
        with suppress(psutil.NoSuchProcess):
            return any(Path(file.path).parent == self._folder for file in step.open_files())
        return False

    def start_node(self, name: str) -> None:
        """Switch the node on again after `kill_node`."""
        self._start_node(name)
        try:
            wait_until(self._has_nodes, "the node to be back", most_seconds=NODE_SECONDS)
        except AssertionError as error:
            states = self.ask("sinfo", "--noheader", "--Node", "--format=%N is %T: %E")
            raise AssertionError(f"{error}; {states}") from error

    @contextmanager
    def full(self) -> Iterator[None]:
        """Take the partition down: jobs wait."""
        self.ask("scontrol", "update", "partitionname=main", "state=down")
        try:
            yield
        finally:
            self.ask("scontrol", "update", "partitionname=main", "state=up")

    @contextmanager
    def drained(self, node: str) -> Iterator[None]:
        """Drain *node*, as before its maintenance: it takes no more jobs."""
        self.ask("scontrol", "update", f"nodename={node}", "state=drain", "reason=new disks")
        try:
            yield
        finally:
            self.ask("scontrol", "update", f"nodename={node}", "state=resume")

    @contextmanager
    def preempted(self) -> Iterator[None]:
        """Have a job of another partition take both nodes."""
        wanted = ("--partition=urgent", "--nodes=2", "--exclusive", "--job-name=urgent")
        self.ask("sbatch", *wanted, "--output=/dev/null", "--wrap=exec sleep 1000")
        try:
            yield
        finally:
            self.delete("urgent")

    def node_of(self, job: str) -> str:
        return self.ask("squeue", "--noheader", f"--name={job}", "--format=%N").strip()

    def _end(self, name: str, number: int = signal.SIGTERM) -> None:
        process = self._daemons.pop(name)
        process.send_signal(number)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)

    def close(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.ask("scancel", "--full", "--signal=KILL", f"--user={getpass.getuser()}")
        for name in reversed(list(self._daemons)):
            self._end(name)


def _kill_tree(root: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        root.suspend()  # so that it does not react to the death of the others
        for process in [*root.children(recursive=True), root]:
            process.kill()


@contextmanager
def running_cluster(node_timeout_seconds: int = 30) -> Iterator[SlurmCluster]:
    """A cluster that the environment of this process names; skips where Slurm is missing.

    *node_timeout_seconds* is that of `SlurmCluster`.
    """
    if missing := [program for program in PROGRAMS if shutil.which(program, path=_PATH) is None]:
        pytest.skip(f"not installed: {', '.join(missing)} (Debian: slurm-wlm, munge)")
    if os.geteuid() != 0:
        pytest.skip("slurmd needs root")
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    cluster = SlurmCluster(folder, node_timeout_seconds)
    path = os.environ["PATH"]
    os.environ.update(cluster.variables)
    os.environ["PATH"] = _PATH
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
        os.environ["PATH"] = path
        for name in cluster.variables:
            del os.environ[name]
        shutil.rmtree(folder, ignore_errors=True)


_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])  # of daemons
