"""Hostile programs in a real sandbox, as root and as an ordinary user."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

ORDINARY_UID = 12345
RUNNER = Path(__file__).with_name("run_hostile.py")
REPOSITORY = Path(__file__).parents[5]


def _command(user: str) -> list[str]:
    plain = [sys.executable, str(RUNNER)]
    if user == "ordinary user in a container":
        plain.append("--no-namespaces")
    if (user == "root") == (os.getuid() == 0):
        return plain
    if user == "root":
        pytest.skip("needs root")
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv to become an ordinary user")
    # The interpreter may lie in a folder of root: the user may read everything, and no more.
    reading = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    identity = [f"--reuid={ORDINARY_UID}", f"--regid={ORDINARY_UID}", "--clear-groups"]
    return ["setpriv", *identity, *reading, *plain]


@pytest.fixture(scope="module", params=["root", "ordinary user", "ordinary user in a container"])
def aftermath(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """Effects of the module's `HOSTILE` programs: the runner's report, and their targets."""
    command = [*_command(request.param), *getattr(request.module, "ARGUMENTS", [])]
    home = Path(tempfile.mkdtemp(prefix="genesis-home-"))
    (home / "precious").write_text("precious")
    (home / "empty").mkdir()
    if request.param != "root" and os.getuid() == 0:
        for path in (home, *home.iterdir()):
            os.chown(path, ORDINARY_UID, ORDINARY_UID)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        places = {"HOME": home, "PORT": server.getsockname()[1], "PARENT": os.getpid()}
        programs = {name: dedent(source) for name, source in request.module.HOSTILE.items()}
        for place, value in places.items():
            programs = {name: text.replace(place, str(value)) for name, text in programs.items()}
        run = subprocess.run(
            command,
            input=json.dumps(programs),
            env={"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        try:
            server.accept()
            connected = True
        except TimeoutError:
            connected = False
    report = json.loads(run.stdout)
    yield {
        "report": report,
        "connected": connected,
        "files": sorted(path.name for path in home.iterdir()),
        "precious": (home / "precious").read_text(),
        "mode": home.stat().st_mode & 0o777,
    }
    shutil.rmtree(home)
