"""``genesis-fp16 preflight`` on a real agent, in a real worker."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from genesis_fp16.cli.app import app
from genesis_fp16.daemon.agent_task import AgentTaskError
from genesis_fp16.daemon.checks import check_preflight
from genesis_fp16.daemon.preflight import run_preflight
from genesis_fp16.plugins.agent_folder import read_preflight
from genesis_fp16.plugins.discovery import UnknownAgentError
from genesis_fp16.settings import AgentSettings, Settings, load_settings
from infrastructure.events.preflight_report import PreflightReport
from tests.genesis_fp16.line_plugin import FACTORY, line_plugin
from tests.patience import gone

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forked")]

PROGRAM = Path(sys.executable).parent / "genesis-fp16"


@pytest.fixture(autouse=True)
def folder(folder: Path) -> Path:
    """A working folder in which the built-in agent is disabled."""
    (folder / ".env").write_text("GENESIS_DEVICE=cpu\nGENESIS_AGENTS__SE_DARWIN__ENABLED=false\n")
    return folder


@pytest.fixture
def install_line(install_plugin: Callable[..., None]) -> Callable[..., None]:
    def install(needed: int = 4, later: str = "pass") -> None:
        install_plugin("line", line_plugin(needed=needed, later=later), factory=FACTORY)

    return install


def ask(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_measures_in_a_worker_and_records_nothing_but_the_report(
    install_line: Callable[..., None], folder: Path
) -> None:
    install_line()
    result = ask("preflight", "line", "--json")
    assert result.exit_code == 0, result.output
    report = PreflightReport.model_validate(json.loads(result.stdout))
    assert [measurement.precision for measurement in report.measurements] == [
        "fp32",
        "fp16",
        "bf16",
    ]
    assert report.verdict in ("fp32", "bf16")
    assert (report.device, report.batches) == ("cpu", 4)
    assert {module.module for module in report.modules} >= {"0 (Linear)", "2 (Linear)"}
    home = folder / ".genesis"
    assert read_preflight(home / "agents" / "line") == report
    assert [path.name for path in (home / "agents" / "line").iterdir()] == ["preflight.json"]
    assert list((home / "preflights").iterdir()) == []


def test_an_agent_without_its_extra_is_not_measured_and_the_command_is_named(
    install_line: Callable[..., None], tmp_path: Path
) -> None:
    install_line()
    (info,) = (tmp_path / "site").glob("line_plugin-*.dist-info")
    points = (info / "entry_points.txt").read_text().strip()
    (info / "entry_points.txt").write_text(f"{points} [more]\n")
    with (info / "METADATA").open("a") as metadata:
        metadata.write("Requires-Dist: no-such-thing ; extra == 'more'\n")
    with pytest.raises(
        AgentTaskError, match=r"line .*no-such-thing.*pip install 'line-plugin\[more"
    ) as caught:
        run_preflight(load_settings(), "line")
    assert caught.value.exit_code == os.EX_CONFIG


def test_prints_tables_and_the_recommended_precision(install_line: Callable[..., None]) -> None:
    install_line()
    result = ask("preflight", "line")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[2].split()[:3] == ["precision", "usable", "step"]
    assert [line.split()[0] for line in lines[3:6]] == ["fp32", "fp16", "bf16"]
    assert any(line.startswith("0 (Linear)") for line in lines)
    assert any(line.startswith("loss scale: no overflow up to 2^") for line in lines)
    assert any(line.startswith("train in ") for line in lines)
    assert "a step takes" in result.stdout


def test_doctor_recommends_what_was_measured(
    install_line: Callable[..., None], folder: Path
) -> None:
    install_line()
    assert list(check_preflight(load_settings(), ["line"])) == []
    report = run_preflight(load_settings(), "line")
    settings = load_settings()
    (finding,) = check_preflight(settings, ["line", "other"])
    assert finding.verdict == "ok"
    assert f"best in {report.verdict} on {report.device_name}" in finding.found
    assert f"GENESIS_AGENTS__LINE__PRECISION=auto, or {report.verdict}" in finding.remedy
    for wish in ("auto", report.verdict):
        agents = {"line": AgentSettings(precision=wish)}
        (finding,) = check_preflight(Settings(home=settings.home, agents=agents), ["line"])
        assert finding.remedy == ""
    answer = json.loads(ask("doctor", "--json").stdout)
    assert [result["check"] for result in answer].count("precision") == 1


def test_unknown_agent() -> None:
    with pytest.raises(UnknownAgentError, match="'nobody'"):
        run_preflight(load_settings(), "nobody")
    assert not Path(".genesis").exists()


def test_a_failure_is_reported_with_its_cause_and_keeps_its_log(
    install_line: Callable[..., None], folder: Path
) -> None:
    install_line(later="raise RuntimeError('the simulator is gone')")
    with pytest.raises(AgentTaskError, match="collecting: RuntimeError: the sim") as e:
        run_preflight(load_settings(), "line")
    assert e.value.exit_code == 1
    (kept,) = (folder / ".genesis" / "preflights").iterdir()
    assert "Traceback" in (kept / "worker.log").read_text()
    assert str(kept / "worker.log") in str(e.value)


def test_too_little_data_is_reported(install_line: Callable[..., None]) -> None:
    install_line(needed=100)
    with pytest.raises(AgentTaskError, match=r"6 transitions .*100"):
        run_preflight(load_settings(), "line")


def test_a_worker_that_takes_too_long_is_ended(install_line: Callable[..., None]) -> None:
    install_line(later="time.sleep(600)")
    settings = load_settings().model_copy(update={"run_timeout_seconds": 2.0})
    with pytest.raises(AgentTaskError, match=r"2 s: .*GENESIS_RUN_TIMEOUT"):
        run_preflight(settings, "line")


def test_ctrl_c_leaves_no_worker_behind(
    install_line: Callable[..., None], folder: Path, until: Callable[..., None]
) -> None:
    install_line(later="open('PID', 'w').write(str(__import__('os').getpid())); time.sleep(600)")
    process = subprocess.Popen([PROGRAM, "preflight", "line"], stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: (folder / "PID").exists() and (folder / "PID").read_text())
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == os.EX_TEMPFAIL
    assert stderr == "genesis-fp16: interrupted: nothing was measured\n"
    worker = int((folder / "PID").read_text())
    until(lambda: gone(worker), "the end of the worker")
