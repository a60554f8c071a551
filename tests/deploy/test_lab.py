"""The one command that runs the precision lab on a rented machine, and its container."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import typer

from genesis_fp16.cli.app import app


@pytest.fixture
def recorder(tmp_path: Path) -> Path:
    """A program that appends its arguments to the file ``calls`` beside it."""
    program = tmp_path / "recorder"
    program.write_text(
        '#!/usr/bin/env bash\nprintf "%q " "$@" >> "$(dirname "$0")/calls"\n'
        'echo >> "$(dirname "$0")/calls"\n[ "$2" != "$FAILS" ] || exit 75\n'
    )
    program.chmod(0o755)
    return program


def start(
    root: Path, recorder: Path, *options: str, fails: str = ""
) -> tuple[int, list[list[str]]]:
    """Exit status of ``runpod_start.sh``, and the arguments of each command it ran."""
    results = str(recorder.parent / "results")
    environment = {**os.environ, "LAB_PROGRAM": str(recorder), "RESULTS": results, "FAILS": fails}
    done = subprocess.run(
        [root / "runpod_start.sh", *options], env=environment, check=False, capture_output=True
    )
    lines = (recorder.parent / "calls").read_text().splitlines()
    return done.returncode, [shlex.split(line) for line in lines]


def check_arguments(words: list[str]) -> None:
    """Have the program's own parser read *words*; it raises what a person would see."""
    command, rest = typer.main.get_command(app), words
    context = command.make_context("genesis-fp16", ["lab"], resilient_parsing=True)
    while hasattr(command, "get_command"):
        name, *rest = rest
        subcommand = command.get_command(context, name)
        assert subcommand is not None, f"no command {name}"
        command = subcommand
    command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("options", [[], ["--quick"], ["--quick", "--preset", "bf16_pure"]])
def test_the_lab_is_run_from_comparison_to_report(
    options: list[str], root: Path, recorder: Path
) -> None:
    status, calls = start(root, recorder, *options)
    assert status == 0
    assert [call[1] for call in calls] == ["compare", "freeze", "replay", "sweep", "report"]
    assert calls[3][-len(options) :] == options or not options
    for call in calls:
        check_arguments(call)


def test_a_sweep_that_fails_is_reported_and_its_status_is_kept(root: Path, recorder: Path) -> None:
    status, calls = start(root, recorder, "--quick", fails="sweep")
    assert status == 75
    assert calls[-1][1] == "report"
    status, calls = start(root, recorder, fails="compare")
    assert (status, calls[-1][1]) == (75, "compare")


def test_the_container_sends_what_it_copies(root: Path) -> None:
    dockerfile = (root / "deploy/lab/Dockerfile").read_text()
    ignored = (root / "deploy/lab/Dockerfile.dockerignore").read_text().splitlines()
    copied = re.findall(r"^COPY (\S+) \S+$", dockerfile, re.MULTILINE)
    assert {line[1:] for line in ignored if line[:1] == "!"} == {*copied}
    assert all((root / name).is_file() for name in copied)
    assert os.access(root / "runpod_start.sh", os.X_OK)
    assert os.access(root / "setup.sh", os.X_OK)


def test_setup_refuses_an_option_it_does_not_know(root: Path) -> None:
    done = subprocess.run([root / "setup.sh", "--gpu"], check=False, capture_output=True, text=True)
    assert done.returncode == 64
    assert "use --local or --runpod" in done.stderr
