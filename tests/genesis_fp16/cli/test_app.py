"""The program itself: errors, start, pipes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("folder")]

PROGRAM = Path(sys.executable).parent / "genesis-fp16"


def program(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environ},
    )


def test_error_is_a_message_and_an_exit_code() -> None:
    done = program("runs", GENESIS_SLOTS="many")
    assert done.returncode == 78
    assert done.stdout == ""
    assert "GENESIS_SLOTS=many (environment)" in done.stderr
    assert "Traceback" not in done.stderr
    done = program("runs", "show", "nope", "--json")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "genesis-fp16: no run has the id 'nope': see genesis-fp16 runs\n"


def test_the_program_starts_without_heavy_modules() -> None:
    assert program("--version").stdout.startswith("genesis-fp16 ")
    script = "import sys, genesis_fp16.cli.app; print(sorted(sys.modules))"
    modules = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    heavy = ("'torch'", "'sqlalchemy'", "'prometheus_client'", "'structlog'", "'rich'")
    assert [name for name in heavy if name in modules] == []


def test_a_closed_pipe_is_not_an_error() -> None:
    done = subprocess.run(
        f"{PROGRAM} config show | true; exit ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
