"""Which executor the settings name, and what an agent's jobs ask for."""

import sys
from pathlib import Path
from typing import Literal

import pytest
from structlog.testing import capture_logs

from genesis_fp16.daemon.checks import check_engine
from genesis_fp16.executors import LocalExecutor
from genesis_fp16.executors.choice import job_options, make_engine, make_executor, make_mirrors
from genesis_fp16.executors.kubernetes.checks import missing_settings
from genesis_fp16.executors.remote import RemoteExecutor, Resources
from genesis_fp16.settings import AgentSettings, Settings


def test_workers_run_here_unless_an_engine_is_named() -> None:
    assert isinstance(make_executor(Settings), LocalExecutor)
    assert make_engine(Settings()) is None


def test_a_url_that_nothing_uses_is_told() -> None:
    settings = Settings(shared_url="s3://bucket/x")
    with capture_logs() as logs:
        assert isinstance(make_executor(lambda: settings), LocalExecutor)
    assert [entry["event"] for entry in logs] == ["shared_url_unused"]
    first, told = check_engine(settings)
    assert (first.verdict, told.verdict) == ("ok", "warn")
    assert "GENESIS_SHARED_URL" in told.found


@pytest.mark.parametrize("name", ["slurm", "kubernetes"])
def test_an_engine_is_named(name: Literal["slurm", "kubernetes"]) -> None:
    settings = Settings(executor=name)
    executor = make_executor(lambda: settings)
    assert isinstance(executor, RemoteExecutor)
    assert executor.engine.name == name


def test_ray_is_where_the_settings_say(tmp_path: Path) -> None:
    missing = tmp_path / "token"
    engine = make_engine(
        Settings(executor="ray", ray_address="http://127.0.0.1:9", ray_token_file=missing)
    )
    assert engine.name == "ray"
    assert str(missing) in engine.check()[0].what
    engine = make_engine(Settings(executor="ray", ray_address="http://127.0.0.1:9"))
    assert "http://127.0.0.1:9" in engine.check()[0].what


def test_a_url_stands_in_for_a_shared_folder(tmp_path: Path) -> None:
    settings = Settings(executor="kubernetes", shared_url="s3://bucket/x", home=tmp_path)
    settings = settings.model_copy(update={"kubernetes_image": "image"})
    home = (tmp_path / "store-id").read_text
    assert make_mirrors(settings).launcher[-1] == f"s3://bucket/x/{home()}"
    assert make_mirrors(settings).launcher[-1] == f"s3://bucket/x/{home()}", "each time"
    assert missing_settings(settings, None) == "", "no volume is needed"
    assert make_mirrors(Settings(executor="slurm")) is None


def test_an_agents_own_resources_outrank_those_of_all() -> None:
    agents = {"a": AgentSettings(job_gpus=0, job_minutes=30), "b": AgentSettings(job_cpus=8)}
    settings = Settings(job_cpus=2, job_gpus=1, job_memory_mib=4096, agents=agents)
    assert job_options(settings, "a").resources == Resources(
        cpus=2, gpus=0, memory_mib=4096, minutes=30
    )
    assert job_options(settings, "b").resources == Resources(cpus=8, gpus=1, memory_mib=4096)
    assert job_options(settings, "b").python == sys.executable
    remote = Settings(remote_python="/opt/genesis/bin/python", home=Path("h"))
    assert job_options(remote, "b").python == "/opt/genesis/bin/python"
