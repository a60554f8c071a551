"""A daemon under torture: its home, its settings file, its process, and what the store says."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.measuring.ports import free_port
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from tests.e2e.torture.stage import Stage
from tests.patience import crowding
from tests.preloaded import adopt_orphans, fork_daemon

SCHEDULED = "yew"  # the agent that is due at times; the others run when asked
WITH_PARTS = "rowan"  # its job has five parts; played on request alone
ALIKE = {"oak": "fp32", "elm": "fp32", "ash": "fp16", "fir": "fp16"}  # name to precision
AGENTS = {**ALIKE, WITH_PARTS: "fp16"}
AGENT_DISTRIBUTION = "torture-agent"
LATE = "elder"  # an agent that is installed while the daemon serves
STOP_SECONDS = 2.0
TAKEOVER_SECONDS = 15.0  # so that a crowded machine is not mistaken for a silent database
SETTINGS_SECONDS = 1.5  # in which a change of the flag is in force
POLL_SECONDS = 0.01
IDLE_SECONDS, IDLE_SHARE = 30.0, 0.08  # of one CPU; a daemon that waits needs less
MOST_SECONDS = 60.0
_CPU_LOOK_SECONDS = 1.0


class StuckError(AssertionError):
    """Something that must happen did not happen while all processes were idle."""


class Reaper:
    """Collects the exit status of every process that is or becomes our child."""

    def __init__(self) -> None:
        adopt_orphans()
        self._ended: dict[int, int] = {}

    def status(self, pid: int) -> int | None:
        """Exit code, or the negative number of a signal; None while the process lives."""
        with suppress(ChildProcessError):
            while True:
                ended, status = os.waitpid(-1, os.WNOHANG)
                if not ended:
                    break
                self._ended[ended] = os.waitstatus_to_exitcode(status)
        return self._ended.get(pid)


@dataclass(frozen=True)
class Row:
    """A run as the store has it."""

    id: str
    agent: str
    state: str
    steps: int
    half_steps: int
    published: bool | None
    error: str | None
    attempts: tuple[dict[str, Any], ...]


def _backs_up(process: psutil.Process) -> bool:
    """Whether *process* is the command that takes a backup, which --backups runs at any time."""
    with suppress(psutil.Error):
        return "backup" in process.cmdline()
    return False


class Service:
    """One home with its daemon.

    Args:
        folder: Working folder of the daemon; its home, plans and plugins are in it.
        stage: The database, the executor and how processes are started.

    Attributes:
        database: Of this home.
    """

    def __init__(self, folder: Path, reaper: Reaper, stage: Stage) -> None:
        self.folder, self.home, self.stage = folder, folder / "home", stage
        self.database = stage.new_database(self.home)
        self.log_path = folder / "daemon.log"
        self.env_path, self._next_env = folder / ".env", folder / ".env.new"
        self.fuse = folder / "commit-fuse"
        self.pid: int | None = None
        self.starts = 0
        self._swapped_at = 0.0
        self._reaper = reaper
        folder.mkdir(parents=True, exist_ok=True)
        self._site, self._versions = folder / "site", 0
        self._site.mkdir()
        shutil.copy(Path(__file__).with_name("agent.py"), self._site / "torture_agent.py")
        shutil.copy(Path(__file__).parents[1] / "parts_job.py", self._site)
        self.install(AGENT_DISTRIBUTION, *AGENTS, SCHEDULED)
        self.port = 0
        self._environment = {
            "PATH": os.environ.get("PATH", ""),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(self._site),
            "HOME": str(folder),
            **stage.variables,
        }
        self.settings: dict[str, object] = {
            "ENABLE_FP16_TRAINING": "true",
            "GENESIS_HOME": self.home,
            "GENESIS_DEVICE": "cpu",
            "GENESIS_CPU_HALF": "true",
            "GENESIS_PRECISION": "fp16",
            "FP16_LOSS_SCALE": 256.0,
            "GENESIS_SLOTS": 4,
            "GENESIS_MAX_ATTEMPTS": 4,
            "GENESIS_RETRY_BACKOFF_SECONDS": 0.05,
            "GENESIS_CHECKPOINT_INTERVAL_SECONDS": 0.05,
            "GENESIS_STATS_INTERVAL_STEPS": 10,
            "GENESIS_BASELINE_INTERVAL_STEPS": 50,
            "GENESIS_STOP_TIMEOUT_SECONDS": STOP_SECONDS,
            "GENESIS_NO_PROGRESS_TIMEOUT_SECONDS": stage.no_progress_seconds,
            "GENESIS_KEEP_RUNS": 3,
            "GENESIS_GUARD_ENABLED": "false",
            "GENESIS_BASELINE_EVERY_RUNS": 0,
            "GENESIS_AGENTS__SE_DARWIN__ENABLED": "false",
            "GENESIS_AGENTS__OAK__PRECISION": "fp32",
            "GENESIS_AGENTS__YEW__PRECISION": "fp32",
            "GENESIS_AGENTS__ELM__PRECISION": "fp32",
            **stage.settings(folder, {"PYTHONPATH": str(self._site), "OMP_NUM_THREADS": "1"}),
        }
        if self.database.url is not None:
            self.settings["GENESIS_DATABASE_URL"] = self.database.url
            self.settings["GENESIS_TAKEOVER_SECONDS"] = TAKEOVER_SECONDS
        self.configure()
        for agent in (*AGENTS, SCHEDULED):
            self.plan(agent, [])

    # Plugins

    def install(self, distribution: str, *agents: str) -> str:
        """Install or upgrade *distribution* with *agents*, as pip would; return its new version."""
        self.uninstall(distribution)
        self._versions += 1
        version = f"1.{self._versions}"
        with (self._site / "torture_agent.py").open("a") as module:
            module.write(f"# {distribution} {version}\n")
        metadata = self._site / f"{distribution.replace('-', '_')}-{version}.dist-info"
        metadata.mkdir()
        points = "".join(f"{name} = torture_agent:{name.title()}\n" for name in agents)
        (metadata / "entry_points.txt").write_text(f"[genesis.agents]\n{points}")
        about = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        (metadata / "METADATA").write_text(about)
        return version

    def uninstall(self, distribution: str) -> None:
        """Take *distribution* away, if it is there; the module stays for the others."""
        for metadata in self._site.glob(f"{distribution.replace('-', '_')}-*.dist-info"):
            shutil.rmtree(metadata)

    def has_logged(self, *texts: str) -> bool:
        """Whether a line of the daemon's log has all *texts*."""
        return any(all(text in line for text in texts) for line in self.log.splitlines())

    # Settings and plans

    def store(self) -> Store:
        """The store, as a command opens it; close it."""
        return Store.open(Settings(home=self.home, database_url=self.database.url))

    def cancel(self, run_id: str) -> bool:
        """Ask for the cancellation of a run, as another program on this machine can."""
        with closing(self.store()) as store:
            return store.request_cancel(run_id, actor="torture", reason="torture")

    def configure(self, **settings: object) -> float:
        """Change settings by swapping the file; return the Unix time of the swap."""
        self.prepare(**settings)
        return self.swap()

    def prepare(self, **settings: object) -> None:
        """Write the next settings file beside the one in force."""
        self.settings |= settings
        text = "".join(f"{name}={value}\n" for name, value in self.settings.items())
        self._next_env.write_text(text)

    def swap(self) -> float:
        """Put the prepared settings file in force, which needs no space; the Unix time of it."""
        self._next_env.rename(self.env_path)
        self._swapped_at = time.monotonic()
        return time.time()

    def wait_for_settings(self) -> None:
        """Give the daemon the time in which it must have applied the last swap."""
        time.sleep(max(0.0, self._swapped_at + SETTINGS_SECONDS - time.monotonic()))

    def plan(self, agent: str, moments: list[dict[str, Any]], pace_seconds: float = 0.0) -> Path:
        """Replace the plan of *agent*; return its folder, empty of moments reached before."""
        folder = self.folder / "plans" / agent
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        plan = {"moments": moments, "pace_seconds": pace_seconds}
        (folder / "plan.json").write_text(json.dumps(plan))
        return folder

    # The process

    def launch(self, *options: str) -> int:
        """Start a daemon with these options, without waiting for it; it is the one from now on."""
        self.starts += 1
        self.port = free_port()
        environment = {**self._environment, "GENESIS_METRICS_PORT": str(self.port)}
        if self.stage.real:
            with self.log_path.open("ab") as log:
                self.pid = subprocess.Popen(
                    [str(Path(sys.executable).with_name("genesis-fp16")), "serve", *options],
                    cwd=self.folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                ).pid
        else:
            self.pid = fork_daemon(
                ["serve", *options], self.folder, environment, self.log_path, self.fuse
            )
        return self.pid

    def start(self) -> None:
        """Start the daemon, and wait until it is ready and has all agents."""
        self.launch()
        self.wait(self.is_ready, "the daemon to be ready")
        self.wait(self.has_agents, "the agents to be ready")

    def is_ready(self) -> bool:
        """Whether the daemon accepts work; raises if it has ended."""
        status = self.status()
        if status is not None:
            raise AssertionError(f"the daemon ended with {status} before it was ready")
        return self.get("/readyz")[0] == 200

    def has_agents(self) -> bool:
        """Whether the daemon has found all agents ready."""
        up = {
            sample.labels["agent"]
            for family in text_string_to_metric_families(self.get("/metrics")[1])
            for sample in family.samples
            if sample.name == "genesis_plugin_up" and sample.value == 1
        }
        return up >= {*AGENTS, SCHEDULED}

    def status(self, pid: int | None = None) -> int | None:
        """How the daemon, or an earlier one, ended; None while it lives."""
        pid = pid or self.pid
        assert pid is not None
        return self._reaper.status(pid)

    def send(self, number: int) -> None:
        """Send a signal to the daemon."""
        assert self.pid is not None
        os.kill(self.pid, number)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal that ends the daemon; return how it ended."""
        self.send(number)
        self.wait(lambda: self.status() is not None, "the daemon to end")
        ended = self.status()
        assert ended is not None
        self.pid = None
        return ended

    def command(self, *arguments: str) -> tuple[int, str]:
        """Run ``genesis-fp16 ARGUMENTS`` beside the daemon; exit code and output."""
        with tempfile.NamedTemporaryFile(dir=self.folder.parent, prefix="command-") as output:
            path = Path(output.name)
            pid = fork_daemon(arguments, self.folder, self._environment, path)
            self.wait(lambda: self._reaper.status(pid) is not None, f"{arguments} to end")
            code = self._reaper.status(pid)
            assert code is not None
            return code, path.read_text(errors="replace")

    def kill_everything(self) -> None:
        """End the daemon, its workers, and all that they have started."""
        pid, self.pid = self.pid, None
        if pid is not None and self.status(pid) is None:
            os.kill(pid, signal.SIGKILL)
        while left := self.strangers():
            for process in left:
                with suppress(psutil.Error):
                    process.kill()
            time.sleep(POLL_SECONDS)

    def are_all_gone(self) -> bool:
        """Whether no process but the daemon is left, or will be in a moment."""
        return not self.lasting_strangers(3.0)

    def lasting_strangers(self, seconds: float) -> list[psutil.Process]:
        """What is left after so many *seconds*; empty as soon as nothing is: probes come and go."""
        give_up = time.monotonic() + seconds
        while (left := self.strangers()) and time.monotonic() < give_up:
            time.sleep(POLL_SECONDS)
        return left

    def strangers(self) -> list[psutil.Process]:
        """Processes of runs and probes: not the daemon, what it forks from, nor the servers."""
        self._reaper.status(0)
        processes = self.stage.processes()
        mine = {self.pid}
        if self.pid is not None and not self.stage.real:
            with suppress(psutil.Error):  # the base is the daemon's first child
                children = psutil.Process(self.pid).children()
                mine |= {min((child.pid for child in children), default=self.pid)}
        return [
            process for process in processes if process.pid not in mine and not _backs_up(process)
        ]

    # What it shows

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of the listener's answer; status 0 if it does not listen."""
        url = f"http://127.0.0.1:{self.port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, ""
        except OSError:
            return 0, ""

    def steps_counted(self) -> dict[str, float]:
        """Agent to the steps attempted, as the metrics have counted them."""
        counted = dict.fromkeys(AGENTS, 0.0)
        for family in text_string_to_metric_families(self.get("/metrics")[1]):
            for sample in family.samples:
                agent = sample.labels.get("agent")
                if sample.name == "genesis_training_steps_total" and agent in counted:
                    counted[agent] += sample.value
        return counted

    @property
    def log(self) -> str:
        """All that the daemon has printed."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    # The store, read without the daemon's own code

    def rows(self) -> list[Row]:
        """All runs, oldest first, with their attempts."""
        by_run: dict[str, list[dict[str, Any]]] = {}
        attempts, runs = self.database.read(
            "SELECT * FROM attempts ORDER BY run_id, number",
            "SELECT * FROM runs ORDER BY created_at, id",
        )
        for attempt in attempts:
            by_run.setdefault(attempt["run_id"], []).append(attempt)
        names = Row.__dataclass_fields__.keys() - {"attempts"}
        return [
            Row(**{name: run[name] for name in names}, attempts=tuple(by_run.get(run["id"], ())))
            for run in runs
        ]

    def row(self, run_id: str) -> Row:
        """One run."""
        matching = [row for row in self.rows() if row.id == run_id]
        assert matching, f"run {run_id} is not in the store"
        return matching[0]

    def enqueue(self, agent: str, seed: int) -> str:
        """Queue a run of *agent* with the seed *seed*, as the command ``run`` does; its id."""
        earlier = sum(row.agent == agent for row in self.rows())
        with closing(self.store()) as store:
            return store.enqueue(agent, first_seed=seed - earlier).id

    # Waiting

    def wait(self, holds: Callable[[], object], what: str) -> float:
        """Wait until *holds* is true; return the seconds that it took.

        Raises:
            StuckError: Our descendants were idle for `IDLE_SECONDS`, or it took `MOST_SECONDS`;
                longer on a crowded machine.
        """
        begun = looked = progressed = time.monotonic()
        used = _cpu_seconds()
        while not holds():
            now = time.monotonic()
            if now - looked > _CPU_LOOK_SECONDS:
                latest = _cpu_seconds()
                if abs(latest - used) > IDLE_SHARE * (now - looked):
                    progressed = now
                looked, used = now, latest
                slower = crowding() * self.stage.patience
                idle, most = now - progressed, now - begun
                if idle > IDLE_SECONDS * slower or most > MOST_SECONDS * slower:
                    raise StuckError(f"waited {most:.0f} s for {what}")
            time.sleep(POLL_SECONDS)
        return time.monotonic() - begun


def event_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Decode the complete lines of an event file; one that is not an event yields its text."""
    try:
        data = path.read_bytes()
    except OSError:
        return
    for line in data.split(b"\n")[:-1]:
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        if isinstance(event, dict) and "kind" in event:
            yield event
        else:
            yield {"kind": "unreadable", "line": line[:200].decode(errors="replace")}


def _cpu_seconds() -> float:
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total
