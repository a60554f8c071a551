"""Genesis beside us: on the path, editable and installed; real processes and real installations.

A small distribution stands for Genesis: packages of our names, with `__init__`, which need a
framework that nobody has.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[3]
OFFLINE = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--no-compile"]
GENESIS = {
    "pyproject.toml": (
        '[project]\nname = "genesis-rebuild"\nversion = "1.0"\n'
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[tool.setuptools]\npackages = ["agents", "infrastructure", "infrastructure.training"]\n'
    ),
    "infrastructure/__init__.py": "def get_logger(): return 'a logger'\n",
    "infrastructure/replay_buffer.py": "class ReplayBuffer: ...\n",
    "infrastructure/training/__init__.py": "trainer = 'of Genesis'\n",
    "agents/__init__.py": "import agent_framework\n",
    "agents/se_darwin_agent.py": "import agent_framework\n",
    "agents/waltzrl_feedback_agent.py": "import agent_framework\n",
}
ITS_OWN_CODE = "from infrastructure import get_logger; print(get_logger())"


class Installation:
    """A virtual environment with our wheel; the libraries are those of this test's."""

    def __init__(self, venv: Path) -> None:
        self.venv = venv
        self.python = venv / "bin" / "python"
        base = {"base": str(venv), "platbase": str(venv)}
        self.site = Path(sysconfig.get_path("purelib", vars=base))

    def pip(self, *arguments: str | Path) -> None:
        subprocess.run([self.python, "-m", "pip", *arguments], check=True, capture_output=True)

    def run(
        self, *command: str | Path, folder: Path, python_path: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        environment |= {"GENESIS_HOME": str(self.venv / "home"), "OMP_NUM_THREADS": "1"}
        environment |= {} if python_path is None else {"PYTHONPATH": python_path}
        return subprocess.run(
            [self.python, *command],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    def doctor(
        self, folder: Path, python_path: str | None = None
    ) -> dict[str, list[dict[str, str]]]:
        """Findings of the console script by check."""
        script = self.venv / "bin" / "genesis-fp16"
        done = self.run(script, "doctor", "--json", folder=folder, python_path=python_path)
        assert "Traceback" not in done.stderr, done.stderr
        findings: dict[str, list[dict[str, str]]] = {}
        for finding in json.loads(done.stdout):
            findings.setdefault(finding["check"], []).append(finding)
        return findings


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ours")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in ("genesis_fp16", "infrastructure", "agents"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    installation = Installation(folder / "venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", installation.venv], check=True)
    (installation.site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    installation.pip("install", *OFFLINE, folder)
    return installation.venv


@pytest.fixture
def installation(ours: Path, tmp_path: Path) -> Installation:
    return Installation(Path(shutil.copytree(ours, tmp_path / "venv", symlinks=True)))


@pytest.fixture
def genesis(tmp_path: Path) -> Path:
    root = tmp_path / "genesis"
    for name, text in GENESIS.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def verdicts(findings: dict[str, list[dict[str, str]]], *checks: str) -> set[str]:
    return {finding["verdict"] for check in checks for finding in findings[check]}


@pytest.mark.parametrize("entry", [None, "."])
def test_its_root_as_working_folder_or_in_the_path_hides_nothing_of_ours(
    installation: Installation, genesis: Path, entry: str | None
) -> None:
    findings = installation.doctor(genesis, entry)
    assert verdicts(findings, "library", "files", "plugin", "device") == {"ok"}
    found = [finding["found"] for finding in findings["plugin"]]
    assert "se-darwin is ready" in found
    its_own = installation.run("-c", ITS_OWN_CODE, folder=genesis, python_path=entry)
    assert its_own.stdout == "a logger\n"


def test_installed_editable_it_is_named_as_a_neighbour(
    installation: Installation, genesis: Path, tmp_path: Path
) -> None:
    installation.pip("install", *OFFLINE, "--editable", genesis)
    findings = installation.doctor(tmp_path)
    assert verdicts(findings, "library", "plugin") == {"ok"}
    warned = [finding for finding in findings["files"] if finding["verdict"] == "warn"]
    for finding, package in zip(warned, ("infrastructure", "agents"), strict=True):
        assert (
            f"genesis-rebuild 1.0 has a package of our name, {genesis / package}"
            in (finding["found"])
        )
        assert "environment of its own" in finding["remedy"]


def test_installed_as_a_wheel_it_is_named_with_what_it_overwrote(
    installation: Installation, genesis: Path, tmp_path: Path
) -> None:
    """Ours go on, but for the agents whose file is Genesis' now, which say so."""
    installation.pip("install", *OFFLINE, genesis)
    findings = installation.doctor(tmp_path)
    assert verdicts(findings, "device") == {"ok"}
    overwritten = findings["files"][0]
    assert overwritten["verdict"] == "fail"
    assert overwritten["found"].startswith("genesis-rebuild 1.0 overwrote 3 of our files: ")
    assert "agents/se_darwin_agent.py" in overwritten["found"]
    assert "environment of its own" in overwritten["remedy"]
    [plugin] = [f for f in findings["plugin"] if "se-darwin" in f["found"]]
    assert (
        "se-darwin is quarantined: agents/se_darwin_agent.py is not the file that was"
        in (plugin["found"])
    )
    assert "genesis-rebuild 1.0" in plugin["found"]
    assert "environment of its own" in plugin["found"]
    its_own = installation.run("-c", ITS_OWN_CODE, folder=tmp_path)
    assert its_own.stdout == "a logger\n"
    # What the documents say of uninstalling ours: the files of that name go with them.
    installation.pip("uninstall", "--yes", "genesis-fp16")
    assert not (installation.site / "agents" / "se_darwin_agent.py").exists()
    assert (installation.site / "agents" / "__init__.py").exists()


def test_a_process_at_its_root_is_told_in_words_that_ours_is_elsewhere(
    installation: Installation, genesis: Path
) -> None:
    for code in ("import genesis_fp16.settings", f"{ITS_OWN_CODE}; import genesis_fp16.settings"):
        done = installation.run("-c", code, folder=genesis)
        last = done.stderr.splitlines()[-1]
        assert "ForeignLibraryError: 'infrastructure' in this process is" in last
        assert str(genesis / "infrastructure") in last
        assert "genesis-client" in last


def test_a_plugin_that_imports_what_ours_hides_is_quarantined_for_that(
    installation: Installation, genesis: Path
) -> None:
    plugin = genesis.parent / "plugin"
    plugin.mkdir()
    (plugin / "reads_genesis.py").write_text(
        "from infrastructure.replay_buffer import ReplayBuffer"
    )
    (plugin / "pyproject.toml").write_text(
        '[project]\nname = "reads-genesis"\nversion = "1"\n'
        '[project.entry-points."genesis.agents"]\nreader = "reads_genesis:Agent"\n'
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[tool.setuptools]\npy-modules = ["reads_genesis"]\n'
    )
    installation.pip("install", *OFFLINE, plugin)
    findings = installation.doctor(genesis, str(genesis))
    [reader] = [f for f in findings["plugin"] if f["found"].startswith("reader ")]
    assert (
        "imports 'infrastructure.replay_buffer', which the library of genesis-fp16"
        in (reader["found"])
    )
    assert "install it" not in reader["found"]
