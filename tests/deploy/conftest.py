"""The repository, a Debian machine of our own that boots a real systemd, and who hears notices."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

PACKAGES = "systemd,systemd-sysv,dbus,python3,python3-venv,make,procps"
WANTED = ["--constraint", "constraints.txt", ".[postgres]", "setuptools>=77", "wheel"]
NSPAWN = [
    "systemd-nspawn",
    "--quiet",
    "--boot",
    "--private-network",
    "--register=no",
    "--keep-unit",
]
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PIP = ["PIP_NO_INDEX=1", "PIP_FIND_LINKS=/srv/wheels"]
ENTER = ["--all", "env", "-i", PATH, "HOME=/root", *PIP, "sh", "-c"]
HOME = "/var/lib/genesis-fp16"
AGENT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"
[project]
name = "quick-agent"
version = "1.0"
[project.entry-points."genesis.agents"]
quick = "quick_agent:QuickAgent"
[tool.setuptools]
py-modules = ["quick_agent"]
"""


@pytest.fixture(scope="session")
def root() -> Path:
    return Path(__file__).resolve().parents[2]


class Machine:
    """A Debian in a container whose first process is systemd; *folder* holds its files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / HOME[1:]
        self._console = (folder.parent / "console.log").open("wb")
        self._container = subprocess.Popen(
            [*NSPAWN, f"--directory={folder}"],
            stdin=subprocess.DEVNULL,
            stdout=self._console,
            stderr=subprocess.STDOUT,
        )
        self.wait_for(self._is_up, 60)

    def _is_up(self) -> bool:
        return self.run("systemctl is-system-running", check=False) in ("running", "degraded")

    def run(self, command: str, *, check: bool = True, seconds: float = 400) -> str:
        """What *command* prints in the machine, where it runs as root."""
        first = psutil.Process(self._container.pid).children()
        if not first:
            return ""
        done = subprocess.run(
            ["nsenter", f"--target={first[0].pid}", *ENTER, f"cd /srv; {command}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        if check and done.returncode:
            pytest.fail(f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}{self.last}")
        return done.stdout.strip()

    def json(self, command: str):
        """What a command of genesis-fp16 answers with ``--json``."""
        return json.loads(self.run(f"genesis-fp16 {command} --json"))

    def show(self, name: str) -> str:
        """A property of the service."""
        return self.run(f"systemctl show --value -p {name} genesis-fp16.service")

    def configure(self, **settings: object) -> None:
        """Replace the settings file by one that says *settings*."""
        written = self.folder / "etc/genesis-fp16/.env"
        text = "".join(f"{name}={value}\n" for name, value in settings.items())
        written.write_text(text)

    @property
    def log(self) -> str:
        """What the service, and systemd about it, have said."""
        return self.run("journalctl -q -o cat -u genesis-fp16.service", check=False)

    @property
    def last(self) -> str:
        """The end of it."""
        return "\n".join(self.log.splitlines()[-30:])

    def events(self, kind: str) -> list[dict]:
        """Events of *kind* of all attempts, oldest first."""
        lines = [
            json.loads(line)
            for path in self.home.glob("runs/*/attempts/*/events.ndjson")
            for line in path.read_text().splitlines()
            if line.endswith("}")
        ]
        return sorted((e for e in lines if e["kind"] == kind), key=lambda event: event["time"])

    def wait_for(self, holds: Callable[[], object], seconds: float = 90) -> None:
        begun = time.monotonic()
        while not holds():
            if time.monotonic() - begun > seconds:
                pytest.fail(f"not within {seconds} s\n{self.last}")
            time.sleep(0.2)

    def switch_off(self) -> None:
        for process in psutil.Process(self._container.pid).children():
            process.send_signal(signal.SIGRTMIN + 4)  # to systemd: power off
        try:
            self._container.wait(30)
        except subprocess.TimeoutExpired:
            for process in psutil.Process(self._container.pid).children():
                process.kill()
            self._container.wait(30)
        self._console.close()


@pytest.fixture(scope="session")
def machine(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A booted Debian that holds our sources, the wheels they need, and an agent's sources."""
    for program in ("debootstrap", "systemd-nspawn", "nsenter"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")
    bare, wheels = root / "build" / "boot" / "debian", root / "build" / "boot" / "wheels"
    if not (bare / "srv" / "complete").exists():
        shutil.rmtree(bare, ignore_errors=True)
        subprocess.run(
            ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", bare],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        (bare / "srv" / "complete").touch()
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--dest", wheels, *WANTED],
        cwd=root,
        check=True,
    )
    folder = tmp_path_factory.mktemp("machine") / "debian"
    subprocess.run(["cp", "-a", bare, folder], check=True)
    shutil.copytree(wheels, folder / "srv" / "wheels")
    ours = folder / "srv" / "genesis-fp16"
    ours.mkdir()
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, tracked.split("\0")):
        if (root / name).is_file():
            (ours / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, ours / name)
    agent = folder / "srv" / "quick-agent"
    agent.mkdir()
    shutil.copy(root / "tests" / "e2e" / "quick_agent.py", agent)
    (agent / "pyproject.toml").write_text(AGENT)
    machine = Machine(folder)
    yield machine
    machine.switch_off()
