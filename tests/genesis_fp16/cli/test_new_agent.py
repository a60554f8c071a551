"""``genesis-fp16 agents new``: what it writes is built, installed and run."""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import Result

from genesis_fp16.cli.new_agent import TemplateUnavailableError
from genesis_fp16.daemon.foreground import run_once
from genesis_fp16.domain.run import RunState
from genesis_fp16.plugins.discovery import installed_agent
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from tests.preloaded import ForkedPopen

Ask = Callable[..., Result]


def test_a_new_agent_is_built_installed_and_run(
    ask: Ask, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ask("agents", "new", "room-heater", "--description", 'Learns "heat"\n on its own')
    assert made.exit_code == 0, made.output
    assert (
        'description = "Learns \\"heat\\" on its own"'
        in (folder / "room-heater" / "pyproject.toml").read_text()
    )
    site = folder / "site"
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--target", str(site)]
    pip = [sys.executable, "-m", "pip", "install", *options, str(folder / "room-heater")]
    subprocess.run(pip, check=True)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    assert installed_agent("room-heater", folder).distribution == "room-heater-agent"

    monkeypatch.setattr(subprocess, "Popen", ForkedPopen)
    settings = Settings(home=folder / "home", env_file=folder / ".env", worker_threads=1)
    assert run_once(settings, "room-heater") == 0
    with closing(Store.open(settings)) as store:
        [run] = store.runs()
    assert run.state is RunState.SUCCEEDED
    assert run.published, run


def test_a_new_agent_overwrites_nothing(ask: Ask, folder: Path) -> None:
    (folder / "mine").mkdir()
    (folder / "mine" / "notes").touch()
    (folder / "file").touch()
    for options in (["mine"], ["other", "--folder", "file"]):
        answer = ask("agents", "new", *options)
        assert answer.exit_code == 2
        assert "not empty" in " ".join(answer.output.replace("│", "").split())
    answer = ask("agents", "new", "Wrong_Name")
    assert "must match" in answer.output
    known = ask("agents", "new", "se-darwin")
    assert (known.exit_code, "'se-darwin' is known" in known.output) == (2, True)
    assert sorted(path.name for path in folder.iterdir()) == ["file", "mine"]


def test_without_the_extra_the_remedy_is_said(
    ask: Ask, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "copier", None)
    answer = ask("agents", "new", "room-heater")
    assert isinstance(answer.exception, TemplateUnavailableError)
    assert "pip install 'genesis-fp16[new]'" in str(answer.exception)
    assert not (folder / "room-heater").exists()
