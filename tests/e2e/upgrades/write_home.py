"""Write a home as an operator of this release would have it, for the releases after it.

Run it with the Python of the release's own environment::

    .venv/bin/python tests/e2e/upgrades/write_home.py tests/e2e/upgrades/homes/NAME.tar.xz

It starts the real daemon, lets it succeed, fail and cancel, changes the precision, has the guard
trip, kills everything while two runs train, and packs the folder together with what the release's
own commands then say. ``--shared`` writes a home instead in which two configured agents train in
one worker: releases with ``GENESIS_FLEET`` alone do so.

The archive holds ``.env``, ``home/`` and ``facts.json``. It is written under `FOLDER`, which no
machine of ours has, so that the paths in it mean nothing where it is unpacked.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psutil

FOLDER = Path("/var/lib/genesis-fp16")
BIN = Path(sys.executable).parent
RELEASES = Path("/opt")
ROOT = BIN.parents[1]  # the checkout of the release
E2E = Path(__file__).resolve().parents[1]
AGENTS = ("quick", "stormy", "broken", "wave")
CONFIGURED = ("north", "south")
SLOW = "slow"  # a file in an agent's folder, see `upgrade_agents`: the home is killed in time
PROBE = 0.3  # where the kept models are asked
FOR_TEN_YEARS = ("--for", "3650d")  # the longest that an override may last
WAIT_SECONDS = 300.0
DEFINITION = """
schedule = "every 366d"

[source]
path = "records/{agent}"

[spec.observation]
x = {{ type = "box" }}

[spec.targets]
y = {{ type = "box" }}

[training]
steps = {steps}
epochs = 2
batch_size = 16
"""
_ASK = """
import json, sys
from pathlib import Path
from infrastructure.world_model import WorldModel
print(json.dumps({
    folder: WorldModel.load(Path(folder)).predict_batch([{"x": %s}], [{}])[0].next_state
    for folder in sys.argv[1:]
}))
"""


def install_agents(folder: Path) -> Path:
    """Install the agents of the kept homes into *folder*, to be put on the path."""
    folder.mkdir()
    for source in ("quick_agent.py", "stormy_agent.py", "upgrades/upgrade_agents.py"):
        shutil.copy(E2E / source, folder)
    metadata = folder / "upgrade_agents-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: upgrade-agents\nVersion: 1.0\n"
    )
    lines = [f"{agent} = upgrade_agents:{agent.capitalize()}\n" for agent in AGENTS]
    (metadata / "entry_points.txt").write_text("[genesis.agents]\n" + "".join(lines))
    return folder


class Site:
    """The folder of an operator: a settings file, a home, and the daemon that serves it."""

    def __init__(self, folder: Path, plugins: Path) -> None:
        self.folder, self.home = folder, folder / "home"
        self._environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "OMP_NUM_THREADS": "1"}
        self._environ["PYTHONPATH"] = str(plugins)
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self._port = int(listener.getsockname()[1])
        self.settings: dict[str, object] = {
            "GENESIS_HOME": self.home,
            "GENESIS_METRICS_PORT": self._port,
            "GENESIS_WORKER_THREADS": 1,
            "GENESIS_SLOTS": 2,
            "GENESIS_CHECKPOINT_INTERVAL_SECONDS": 0.2,
            "GENESIS_KEEP_CHECKPOINTS": 1,
            "GENESIS_KEEP_RUN_DAYS": 36500,  # the archive is unpacked years later
            "GENESIS_RETRY_BACKOFF_SECONDS": 0.2,
            "GENESIS_MAX_ATTEMPTS": 2,
            "GENESIS_BASELINE_EVERY_RUNS": 0,
            "GENESIS_AGENTS__SE_DARWIN__ENABLED": "false",
            "ENABLE_FP16_TRAINING": "true",
            "GENESIS_CPU_HALF": "true",
        }
        self._daemon: subprocess.Popen[bytes] | None = None

    def configure(self, **settings: object) -> None:
        """Write the settings file; None removes a setting."""
        self.settings |= settings
        lines = [f"{name}={value}\n" for name, value in self.settings.items() if value is not None]
        (self.folder / ".env").write_text("".join(lines))

    def start(self) -> None:
        """Start the daemon and wait until it is ready."""
        with (self.folder / "daemon.log").open("ab") as log:
            self._daemon = self._popen("serve", stdout=log, stderr=log)
        self.wait_for(self._ready, "the daemon to be ready")

    def _popen(self, *arguments: str, **options: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [BIN / "genesis-fp16", *arguments],
            cwd=self.folder,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            **options,
        )

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/readyz", timeout=60) as got:
                return got.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def cli(self, *arguments: str, code: int | None = 0) -> str:
        """Run a command; its output. *code* is the exit code that it must have, None for any."""
        done = subprocess.run(
            [BIN / "genesis-fp16", *arguments],
            cwd=self.folder,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if code not in (None, done.returncode):
            raise RuntimeError(f"{arguments} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    def json(self, *arguments: str) -> object:
        """What a command answers with ``--json``."""
        return json.loads(self.cli(*arguments, "--json"))

    def begin(self, *arguments: str) -> None:
        """Run a command and do not wait for its end."""
        self._popen(*arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def rows(self, query: str) -> list[tuple[object, ...]]:
        """Rows of the daemon's database."""
        with closing(sqlite3.connect(self.home / "genesis.db", timeout=60)) as database:
            return database.execute(query).fetchall()

    def wait_for(self, holds: Callable[[], object], what: str) -> None:
        """Wait until *holds* is true."""
        end = time.monotonic() + WAIT_SECONDS
        while not holds():
            if time.monotonic() > end or (self._daemon is not None and self._daemon.poll()):
                log = (self.folder / "daemon.log").read_text()[-4000:]
                raise RuntimeError(f"waited for {what}, which did not happen:\n{log}")
            time.sleep(0.02)

    def end(self) -> None:
        """Leave no process behind."""
        if self._daemon is not None and self._daemon.poll() is None:
            self.kill()

    def stop(self) -> None:
        """Have the daemon stop its runs and end."""
        self._daemon.send_signal(signal.SIGTERM)
        self._daemon.wait()
        self._daemon = None

    def kill(self) -> None:
        """End the daemon and all of its processes at once, as a power cut would."""
        processes = psutil.Process(self._daemon.pid).children(recursive=True)
        for process in processes:
            process.suspend()
        self._daemon.kill()
        for process in processes:
            process.kill()
        psutil.wait_procs(processes)
        self._daemon.wait()
        self._daemon = None

    def checkpointed(self, *agents: str) -> bool:
        """Whether the last attempt of each agent's running run has a checkpoint with steps."""
        newest = self.rows(
            "SELECT runs.agent, runs.id, MAX(attempts.number) FROM runs JOIN attempts"
            " ON attempts.run_id = runs.id WHERE runs.state = 'running' GROUP BY runs.id"
        )
        folders = {
            agent: self.home / "runs" / run / "attempts" / str(n) for agent, run, n in newest
        }
        return all(
            agent in folders
            and any(checkpoint["step"] for checkpoint in _checkpoints(folders[agent]))
            for agent in agents
        )


def _checkpoints(attempt: Path) -> list[dict[str, object]]:
    """Events of an attempt that tell of a checkpoint; a line without its end is left out."""
    path = attempt / "events.ndjson"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    told = [json.loads(line) for line in lines if line.endswith("\n")]
    return [event for event in told if event["kind"] == "checkpoint_saved"]


def live(site: Site) -> None:
    """Give the home runs that succeeded, failed and were cancelled, decisions, and two at work."""
    site.configure(
        GENESIS_AGENTS__QUICK__SETTINGS__EPOCHS=2,
        GENESIS_AGENTS__STORMY__SETTINGS__EPOCHS=3,
        GENESIS_AGENTS__STORMY__SETTINGS__BATCHES_PER_EPOCH=200,
        FP16_BACKOFF_FACTOR=0.99,  # the scale stays far above its floor while the guard looks
    )
    site.start()
    for agent in ("stormy", "wave", "quick", "wave", "broken", "wave"):
        site.cli("run", agent, code=1 if agent == "broken" else 0)
    site.cli("precision", "set", "bf16", "--agent", "wave", "--reason", "a trial", *FOR_TEN_YEARS)
    site.cli("precision", "set", "fp32", "--agent", "quick", "--reason", "an alert at night")
    site.cli("precision", "clear", "--agent", "quick", "--reason", "the alert was false")
    site.cli("precision", "set", "fp32", "--agent", "broken", "--reason", "not yet", *FOR_TEN_YEARS)
    if "pause" in site.cli("agents", "--help"):
        site.cli("agents", "pause", "broken", "--reason", "its data come on Monday")
    site.stop()

    site.configure(
        GENESIS_AGENTS__QUICK__SETTINGS__EPOCHS=12,
        GENESIS_AGENTS__QUICK__SETTINGS__BATCHES_PER_EPOCH=100,
        GENESIS_AGENTS__QUICK__SCHEDULE='"every 5s"',
    )
    for agent in ("quick", "wave"):
        (site.home / "agents" / agent / SLOW).touch()
    site.start()
    of_quick = "SELECT id FROM runs WHERE agent = 'quick' AND state = "
    site.wait_for(lambda: site.rows(of_quick + "'cancelled'"), "a run to be cancelled by the next")
    site.wait_for(lambda: site.rows(of_quick + "'running'"), "the next run to start")
    site.stop()

    site.configure(GENESIS_AGENTS__QUICK__SCHEDULE=None)
    site.start()
    site.begin("run", "wave")
    site.wait_for(lambda: site.checkpointed("quick", "wave"), "both runs to save a checkpoint")
    site.kill()


def live_shared(site: Site) -> None:
    """Give the home two configured agents, a run of each that succeeded, and one worker of both."""
    site.configure(
        GENESIS_SLOTS=1,
        GENESIS_CHECKPOINT_INTERVAL_SECONDS=600,  # the first runs leave none: the archive is small
        GENESIS_PRECISION="bf16",
        GENESIS_FLEET="auto",
        **{f"GENESIS_AGENTS__{agent.upper()}__ENABLED": "false" for agent in AGENTS},
    )
    definitions = site.home / "agents.d"
    definitions.mkdir(parents=True)
    for seed, agent in enumerate(CONFIGURED):
        (definitions / f"{agent}.toml").write_text(DEFINITION.format(agent=agent, steps=1500))
        records = site.home / "records" / agent
        records.mkdir(parents=True)
        draw = random.Random(seed)
        with (records / "all.jsonl").open("w") as file:
            for number in range(400):
                x = draw.random()
                line = {"id": str(number), "group": f"g{number // 5}", "observation": {"x": x}}
                file.write(json.dumps({**line, "next_observation": {"y": x * x}}) + "\n")
    site.start()
    ended = "SELECT id FROM runs WHERE state = 'succeeded'"
    site.wait_for(lambda: len(site.rows(ended)) == len(CONFIGURED), "each agent's first run to end")
    site.cli(
        "precision", "set", "fp32", "--agent", "south", "--reason", "a trial", "--for", "3650d"
    )
    site.stop()

    site.configure(GENESIS_CHECKPOINT_INTERVAL_SECONDS=0.1)
    due = {f"GENESIS_AGENTS__{agent.upper()}__SCHEDULE": '"every 1s"' for agent in CONFIGURED}
    site.configure(**due)
    site.start()
    site.wait_for(lambda: site.checkpointed(*CONFIGURED), "both runs to save a checkpoint")
    site.kill()
    site.configure(**dict.fromkeys(due))
    workers = site.rows("SELECT pid FROM attempts WHERE finished_at IS NULL")
    if len(workers) != len(CONFIGURED) or len(set(workers)) != 1:
        raise RuntimeError(f"the runs under way do not share one worker: {workers}")


def facts(site: Site) -> dict[str, object]:
    """What the commands of this release say of the home."""
    runs = site.json("runs", "--limit", "1000")
    agents = sorted({run["agent"] for run in runs})
    answers = {
        "release": site.cli("--version").strip(),
        "runs": {run["id"]: site.json("runs", "show", run["id"]) for run in runs},
        "precision": {agent: site.json("precision", "explain", agent) for agent in agents},
        "models": {},
    }
    if "\n  models " in site.cli("--help"):
        answers["models"] = {agent: site.json("models", "list", agent) for agent in agents}
    weights = {
        str(path.parent.relative_to(site.home)) for path in site.home.glob("agents/*/**/model.json")
    }
    asked = subprocess.run(
        [sys.executable, "-c", _ASK % PROBE, *sorted(weights)],
        cwd=site.home, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return answers | {"predictions": json.loads(asked.stdout)}


def pack(site: Site, archive: Path) -> None:
    """Write *archive*, without what nobody reads back: logs, sockets, locks and caches."""
    left_out = (".log", ".sock", ".lock", ".pyc")

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if member.name.endswith(left_out):
            return None
        member.uid = member.gid = 0
        member.uname = member.gname = "root"
        return member

    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:xz", preset=9) as file:
        for name in (".env", ".env.rollbacks.json", "facts.json", "home"):
            if (site.folder / name).exists():
                file.add(site.folder / name, name, filter=plain)


def main() -> None:
    """Write the archive that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archive", type=Path)
    parser.add_argument("--shared", action="store_true", help="two runs train in one worker")
    arguments = parser.parse_args()
    archive = arguments.archive.resolve()
    if not ROOT.is_relative_to(RELEASES):
        parser.error(
            f"errors of a run name {ROOT}: link the checkout and its .venv below {RELEASES}"
        )
    FOLDER.mkdir(parents=True)  # fails where something lies there
    try:
        with tempfile.TemporaryDirectory(prefix="genesis-agents-", dir="/var/lib") as folder:
            site = Site(FOLDER, install_agents(Path(folder) / "plugins"))
            try:
                (live_shared if arguments.shared else live)(site)
                written = json.dumps(facts(site), indent=1)
            finally:
                site.end()
        (FOLDER / "facts.json").write_text(written)
        pack(site, archive)
    finally:
        shutil.rmtree(FOLDER)


if __name__ == "__main__":
    main()
