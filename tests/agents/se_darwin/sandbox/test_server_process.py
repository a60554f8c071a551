from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.se_darwin.sandbox import Sandbox, SandboxUnavailableError
from agents.se_darwin.sandbox.server_process import ServerLostError, ServerProcess


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    suite_file = os.memfd_create("suite")
    server = ServerProcess(
        modules=["math", "nowhere_1"],
        packages=[],
        private_folders=0,
        suite_file=suite_file,
        working_folder=tmp_path,
    )
    os.close(suite_file)
    yield server
    server.close()


@pytest.mark.parametrize("exists", [False, True])
def test_an_interpreter_that_cannot_be_started_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    interpreter = tmp_path / "python"
    if exists:
        interpreter.touch(mode=0o644)
    monkeypatch.setattr(sys, "executable", str(interpreter))
    with pytest.raises(SandboxUnavailableError, match=rf"{interpreter} .*Install Python"):
        Sandbox()


def test_it_reports_modules_that_this_python_does_not_have(server: ServerProcess) -> None:
    assert server.missing_modules == ("nowhere_1",)


def test_a_closed_server_answers_nothing(server: ServerProcess) -> None:
    server.close()
    server.close()
    with pytest.raises(ServerLostError, match="closed"):
        server.exchange({}, 5.0)


def test_a_closed_sandbox_says_so() -> None:
    sandbox = Sandbox()
    sandbox.close()
    with pytest.raises(RuntimeError, match="is closed"):
        sandbox.run(["def solve(): pass"], [], function="solve")
