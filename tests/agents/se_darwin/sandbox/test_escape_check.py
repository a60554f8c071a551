"""The trace tries every way out; a sandbox whose layer only claims to be on is refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agents.se_darwin.sandbox import Sandbox, SandboxUnavailableError, server_process
from agents.se_darwin.sandbox.escape_check import CHECK_SOURCE

KEPT = ("it can keep memory", "it can leave messages", "it can keep semaphores")
FORK_SERVER = Path(server_process.__file__).parents[1] / "fork_server"


def test_unconfined_it_names_every_escape(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.touch()
    call = f"\nprint(*attempt_escapes({str(canary)!r}, {os.getppid()}), sep=chr(10))"
    run = subprocess.run(
        [sys.executable, "-c", CHECK_SOURCE + call],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    escaped = set(run.stdout.splitlines())
    assert set(KEPT) <= escaped
    assert {"it can fork", "it can read files", "it can start programs"} <= escaped
    assert {"it can limit the daemon", "it can slow the daemon down"} <= escaped


@pytest.mark.parametrize("state", ["on", "refused: Function not implemented"])
def test_a_sandbox_without_the_filter_is_refused_even_if_it_claims_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    shutil.copytree(FORK_SERVER, tmp_path / "fork_server")
    server = tmp_path / "fork_server" / "server.py"
    server.write_text(server.read_text().replace("install_seccomp_filter()", repr(state)))
    monkeypatch.setattr(server_process, "_PACKAGE_FOLDER", tmp_path)
    with pytest.raises(SandboxUnavailableError) as caught:
        Sandbox()
    assert set(KEPT) <= set(caught.value.missing)
    assert caught.value.layers["seccomp"] == state
