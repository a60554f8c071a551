"""The example plugin, installed by pip into a fresh environment full of broken ones."""

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agents.se_darwin.prior import PRIOR_FOLDER
from infrastructure.world_model_agent.prior import Prior
from tests.patience import crowding

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
# What each broken module does when it is loaded, and what its quarantine says of it.
BROKEN = {
    "raises": ("raise RuntimeError('no licence file')", "no licence file"),
    "exits": ("import sys; sys.exit(3)", "exit"),
    "segfaults": ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
    "hangs": ("import time\nwhile True: time.sleep(1)", "did not load within "),
    "lacks": ("import a_library_that_nobody_has", "a_library_that_nobody_has"),
}


def _install(python: Path, *sources: Path) -> None:
    """Install source folders by pip, from nothing but what this machine already has."""
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--no-compile"]
    subprocess.run([python, "-m", "pip", "install", *options, *sources], check=True)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment: our wheel, the example's, five broken distributions.

    The libraries both depend on are borrowed from the environment of this test by one path
    entry; ours are installed anew, as a user's would be, and come first.
    """
    folder = tmp_path_factory.mktemp("fresh")
    venv = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(venv), "platbase": str(venv)}))
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")

    ours = folder / "ours"
    ours.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, ours)
    for name in ("genesis_fp16", "infrastructure", "agents"):
        shutil.copytree(ROOT / name, ours / name)
    shutil.copytree(ROOT / "examples" / "pendulum_agent", folder / "pendulum_agent")
    with (folder / "pendulum_agent" / "pendulum_agent.py").open("a") as file:
        file.write("\nPendulumAgent.training_passes = 20  # of 200: it need not learn well\n")
    python = venv / "bin" / "python"
    _install(python, ours, folder / "pendulum_agent")

    for name, (source, _) in BROKEN.items():
        (site / f"{name}_agent.py").write_text(source)
        metadata = site / f"{name}_agent-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}-agent\nVersion: 1.0\n"
        )
        (metadata / "entry_points.txt").write_text(
            f"[genesis.agents]\n{name} = {name}_agent:Agent\n"
        )
    return venv


def decided(daemon: Any) -> list[Any]:
    """Publications that compared a model, oldest first; without enough data there is none."""
    return [event for event in daemon.events("published") if event.metrics]


def test_the_daemon_goes_on(make_daemon: Callable, environment: Path) -> None:
    daemon = make_daemon(bin_folder=environment / "bin", python_path=None)
    daemon.configure(
        GENESIS_PROBE_TIMEOUT_SECONDS=round(10 * crowding()),
        GENESIS_BUDGET_TRANSITIONS=8000,  # 40 episodes: enough on each side of the split
        GENESIS_AGENTS__PENDULUM__SCHEDULE='"every 1d"',  # a second run would act by plans
        GENESIS_AGENTS__SE_DARWIN__ENABLED="true",
        GENESIS_AGENTS__SE_DARWIN__CATCH_UP="none",  # no run within the test
    )
    daemon.start()
    daemon.wait_for(lambda: decided(daemon), "to decide about a model of the pendulum")
    daemon.wait_for(lambda: "plugins_probed" in daemon.log, "to have probed all agents")
    up = "genesis_plugin_up"
    assert {sample["agent"] for sample in daemon.metrics().labels(up)} == {"pendulum", "se-darwin"}
    assert [daemon.metrics().value(up, agent=name) for name in BROKEN] == [0] * 5
    quarantined = [line for line in daemon.log.splitlines() if "plugin_quarantined" in line]
    for name, (_, reason) in BROKEN.items():
        assert any(name in line and reason in line for line in quarantined), name
    assert any("genesis-pendulum-agent" in line for line in daemon.log.splitlines())
    decision = decided(daemon)[0]
    assert decision.published, decision.reason
    assert decision.metrics["nll_skill"] > 1  # nats better than the base rate, held out
    assert daemon.stop()[0] == 0


def test_the_wheel_contains_the_prior(environment: Path) -> None:
    variables = {"base": str(environment), "platbase": str(environment)}
    site = Path(sysconfig.get_path("purelib", vars=variables))
    installed = Prior.open(site / "agents" / "se_darwin" / "prior")  # it checks all hashes
    assert installed.files == Prior.open(PRIOR_FOLDER).files
