"""What is found before a run is lost to it, on a real Slurm."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from genesis_fp16.cli.app import app
from genesis_fp16.executors.check import check_executor
from genesis_fp16.settings import Settings
from tests.genesis_fp16.executors.slurm_cluster import SlurmCluster

pytestmark = pytest.mark.process


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", executor="slurm")


def failures(settings: Settings) -> list[str]:
    findings = check_executor(settings, wait_seconds=400.0)
    return [f"{finding.what}; {finding.remedy}" for finding in findings if not finding.ok]


def test_a_job_reports_what_its_machine_has(settings, slurm_cluster: SlurmCluster) -> None:
    findings = list(check_executor(settings, wait_seconds=400.0))
    assert [finding for finding in findings if not finding.ok] == []
    told = " ".join(finding.what for finding in findings)
    assert "2 of 2 nodes" in told
    assert f"wrote to {settings.home}" in told
    assert "the same versions" in told
    assert list((settings.home / "checks").iterdir()) == []


def test_a_python_that_is_not_there_is_found(settings, slurm_cluster: SlurmCluster) -> None:
    without_python = settings.model_copy(update={"remote_python": "/nowhere/python"})
    [failure] = failures(without_python)
    assert "slurm says failed" in failure
    assert "/nowhere/python must" in failure


def test_an_engine_that_does_not_answer_is_found(settings, slurm_cluster: SlurmCluster) -> None:
    with slurm_cluster.unreachable():
        [failure] = failures(settings)
    assert "slurm_load" in failure or "Unable to contact" in failure
    assert "scontrol ping" in failure


def test_the_command_fails_if_a_run_would_be_lost(settings, slurm_cluster, monkeypatch) -> None:
    monkeypatch.setenv("GENESIS_HOME", str(settings.home))
    monkeypatch.setenv("GENESIS_EXECUTOR", "slurm")
    good = CliRunner().invoke(app, ["executors", "check", "--wait", "0"])
    assert good.exit_code == 0, good.output
    assert "would take a job" in good.output
    monkeypatch.setenv("GENESIS_SLURM_OPTIONS", "--partition=nowhere")
    bad = CliRunner().invoke(app, ["executors", "check", "--json", "--wait", "0"])
    assert bad.exit_code == 1
    [failure] = [finding for finding in json.loads(bad.output) if not finding["ok"]]
    assert "invalid partition" in failure["what"]
    assert "GENESIS_SLURM_OPTIONS" in failure["remedy"]


def test_this_machine_needs_no_check(tmp_path: Path) -> None:
    [finding] = check_executor(Settings(home=tmp_path), wait_seconds=400.0)
    assert finding.ok


def test_sqlite_on_a_shared_file_system_is_found(settings, slurm_cluster, monkeypatch) -> None:
    mounts = [type("Mount", (), {"mountpoint": "/", "fstype": "nfs4"})]
    monkeypatch.setattr("psutil.disk_partitions", lambda all: mounts)
    assert any("GENESIS_DATABASE_URL" in failure for failure in failures(settings))
    elsewhere = settings.model_copy(update={"database_url": "sqlite:////var/lib/genesis.db"})
    assert not any("GENESIS_DATABASE_URL" in failure for failure in failures(elsewhere))
