"""The unit as systemd itself judges it, and what it says beside what the settings say."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from genesis_fp16.daemon.http import TICK_STALE_SECONDS
from genesis_fp16.settings import Settings

pytestmark = pytest.mark.process

WORST_EXPOSURE = 2.0
SANDBOX_NAMESPACES = {"user", "mnt", "pid", "net", "ipc"}


def _analyze(*arguments: object) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze, of the package systemd")
    return subprocess.run(
        ["systemd-analyze", *map(str, arguments)], capture_output=True, text=True, check=False
    )


@pytest.fixture
def unit(root: Path) -> Path:
    return root / "deploy" / "systemd" / "genesis-fp16.service"


@pytest.fixture
def values(unit: Path) -> dict[str, list[str]]:
    """Each name and what it is set to, in order."""
    directives: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", unit.read_text(), re.MULTILINE):
        directives.setdefault(name, []).append(value)
    return directives


@pytest.mark.parametrize("drop_in", [None, "gpu.conf"])
def test_systemd_has_nothing_to_say_against_it(
    unit: Path, tmp_path: Path, drop_in: str | None
) -> None:
    installed = tmp_path / unit.name
    program = Path(sys.executable)  # stands where `make install` puts ours
    text = re.sub(r"ExecStart=\S+", f"ExecStart={program}", unit.read_text())
    installed.write_text(text)
    if drop_in:
        folder = tmp_path / f"{unit.name}.d"
        folder.mkdir()
        shutil.copy(unit.with_name(drop_in), folder)
    done = _analyze("verify", "--man=no", installed)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_it_is_hardened(unit: Path) -> None:
    done = _analyze("security", "--offline=true", unit)
    overall = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert overall, done.stdout + done.stderr
    assert float(overall[1]) <= WORST_EXPOSURE, done.stdout


def test_the_sandbox_may_work(values: dict[str, list[str]], root: Path) -> None:
    """What SE-Darwin's confinement asks of the kernel is not refused."""
    assert set(values["RestrictNamespaces"][0].split()) == SANDBOX_NAMESPACES
    confinement = (root / "agents/se_darwin/fork_server/confinement.py").read_text()
    allowed = {word for line in values["SystemCallFilter"] for word in line.split()}
    for asked, call in {
        "unshare": "unshare",
        ".mount(": "mount",
        "_SYS_MOUNT_SETATTR": "mount_setattr",
        "_SYS_LANDLOCK_CREATE": "landlock_create_ruleset",
        "_SYS_LANDLOCK_RESTRICT": "landlock_restrict_self",
    }.items():
        assert asked in confinement, "the sandbox has changed: look at the unit"
        assert call in allowed


def test_a_stop_lasts_longer_than_a_checkpoint(values: dict[str, list[str]]) -> None:
    assert float(values["TimeoutStopSec"][0]) > Settings().stop_timeout_seconds + 5


def test_a_start_may_take_longer_than_the_loop_may_stall(values: dict[str, list[str]]) -> None:
    """Probes do not count: the daemon is ready before they have ended."""
    assert float(values["TimeoutStartSec"][0]) > TICK_STALE_SECONDS
    assert float(values["WatchdogSec"][0]) > TICK_STALE_SECONDS


def test_hot_settings_are_not_in_its_environment(values: dict[str, list[str]]) -> None:
    assert "EnvironmentFile" not in values
    named = {pair.partition("=")[0] for line in values["Environment"] for pair in line.split()}
    assert {name for name in named if name.startswith(("GENESIS", "FP16", "ENABLE"))} == {
        "GENESIS_ENV_FILE",
        "GENESIS_HOME",
    }
