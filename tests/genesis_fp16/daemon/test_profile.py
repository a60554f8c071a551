"""``genesis-fp16 profile`` on a real agent, in a real worker."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from genesis_fp16.cli.app import app
from genesis_fp16.cli.profile import print_report
from genesis_fp16.daemon.agent_task import AgentTaskError
from genesis_fp16.daemon.profile import active_agents, run_profile
from genesis_fp16.domain.run import RunState
from genesis_fp16.plugins.discovery import UnknownAgentError
from genesis_fp16.settings import load_settings
from genesis_fp16.store import Store
from genesis_fp16.store.lock import DaemonLock
from infrastructure.agent_contract import Transition
from infrastructure.events.profile_report import ProfileReport
from infrastructure.trajectories import ReplayBuffer
from tests.genesis_fp16.line_plugin import FACTORY, line_plugin

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forked")]


@pytest.fixture(autouse=True)
def folder(folder: Path) -> Path:
    """A working folder in which the built-in agent is disabled."""
    (folder / ".env").write_text("GENESIS_DEVICE=cpu\nGENESIS_AGENTS__SE_DARWIN__ENABLED=false\n")
    return folder


@pytest.fixture
def install_line(install_plugin: Callable[..., None]) -> Callable[..., None]:
    def install(*, needed: int = 4, later: str = "pass", loss: str = "") -> None:
        source = line_plugin(needed=needed, later=later).replace(
            "lambda forward: None",
            'lambda forward: Evaluation(metrics={"mse": 1.0}, primary="mse", '
            "higher_is_better=False)",
        )
        source = source.replace("return torch.nn.functional.mse_loss", f"{loss}return mse_loss")
        source = source.replace("return mse_loss", "return torch.nn.functional.mse_loss")
        install_plugin("line", source, factory=FACTORY)

    return install


def files(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_a_run_is_measured_and_nothing_of_the_agent_changes(
    install_line: Callable[..., None], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install_line()
    home = folder / ".genesis"
    Store.open(load_settings()).close()
    with (folder / ".env").open("a") as settings:
        settings.write("GENESIS_AGENTS__LINE__PROCESSES_PER_RUN=2\n")
    buffer = ReplayBuffer(home / "agents" / "line" / "replay")
    for number in range(3):
        buffer.append(Transition(group=f"e{number}", observation={"x": 1.0}, action={}))
    buffer.close()
    before = files(home / "agents")
    result = CliRunner().invoke(app, ("profile", "line", "--json"))
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["transitions"], report["collected"], report["total_steps"]) == (9, 6, 4)
    assert report["precision"] == {
        "requested": "fp16",
        "effective": "fp32",
        "reason": "no_accelerator",
        "roles": {},
        "modules": [],
        "parts": {},
    }
    phases = {phase["phase"]: phase for phase in report["phases"]}
    assert {"start", "collect", "read", "build", "forward", "backward", "evaluate"} <= set(phases)
    assert phases["forward"]["whole"] == 4
    assert phases["start"]["cpu_seconds"] > 0.0
    assert [step["precision"] for step in report["steps"]] == ["fp32", "bf16"]
    assert report["findings"]
    assert any("publish() is" in caveat for caveat in report["caveats"])
    assert "a run trains in 2 processes; one was measured" in report["caveats"]
    assert files(home / "agents") == before
    assert list((home / "profiles").iterdir()) == []
    assert not (home / "runs").exists()
    print_report(ProfileReport.model_validate(report), "line")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("line on cpu (")
    assert any(line.split()[:2] == ["forward", "all"] for line in lines)
    assert any(line.startswith("  - ") for line in lines[lines.index("verdict") :])
    assert [line for line in lines if len(line) > 80] == []


def test_an_agent_whose_step_fails_is_named_with_its_error(
    install_line: Callable[..., None], folder: Path
) -> None:
    install_line(loss="raise RuntimeError('no such simulator')\n            ")
    with pytest.raises(AgentTaskError, match="RuntimeError: no such simulator") as caught:
        run_profile(load_settings(), "line", None, collect_seconds=1.0)
    (kept,) = (folder / ".genesis" / "profiles").iterdir()
    assert str(kept / "worker.log") in str(caught.value)
    assert not (kept / "agent").exists()  # its data are a copy


def test_too_little_data_is_reported(install_line: Callable[..., None]) -> None:
    install_line(needed=100)
    with pytest.raises(AgentTaskError, match=r"6 .* 100 .*120 s .*--collect-seconds"):
        run_profile(load_settings(), "line", None, collect_seconds=float("inf"))


def test_unknown_agent() -> None:
    with pytest.raises(UnknownAgentError, match="'nobody'"):
        run_profile(load_settings(), "nobody", None, collect_seconds=1.0)
    assert not Path(".genesis").exists()


def test_an_agent_that_trains_now_is_not_profiled(install_line: Callable[..., None]) -> None:
    install_line()
    settings = load_settings()
    store = Store.open(settings)
    run = store.enqueue("line", first_seed=0)
    assert active_agents(store) == []
    store.begin_attempt(run.id, "an incarnation")
    assert active_agents(store) == ["line"]
    with pytest.raises(AgentTaskError, match=f"{run.id} is {RunState.STARTING}") as caught:
        run_profile(settings, "line", store, collect_seconds=1.0)
    assert caught.value.exit_code == os.EX_TEMPFAIL
    assert "no daemon" in str(caught.value)
    with DaemonLock(settings), pytest.raises(AgentTaskError, match="wait for its end"):
        run_profile(settings, "line", store, collect_seconds=1.0)
    store.close()


def test_without_room_for_the_copy_the_disk_is_named(
    install_line: Callable[..., None], folder: Path
) -> None:
    install_line()
    home = folder / ".genesis"
    (home / "agents" / "line").mkdir(parents=True)
    (home / "profiles").write_text("in the way")
    with pytest.raises(AgentTaskError, match=r"not profiled: .*profiles") as caught:
        run_profile(load_settings(), "line", None, collect_seconds=1.0)
    assert caught.value.exit_code == os.EX_IOERR
