"""The drill that an operator rehearses works."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import crowding

pytestmark = pytest.mark.process

# Its deadlines are for a machine that does nothing else.
PATIENT = """
import sys
sys.path.insert(0, sys.argv[1])
import drill
drill.DEADLINE_SECONDS *= float(sys.argv[2])
drill.START_SECONDS *= float(sys.argv[2])
sys.exit(drill.main())
"""


def test_the_drill_succeeds_and_shows_who_did_what(root: Path) -> None:
    drill = [sys.executable, "-c", PATIENT, root / "deploy" / "drill", str(crowding())]
    done = subprocess.run(drill, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = [line.split(" after ")[0].strip() for line in done.stdout.splitlines()]
    assert [line.removeprefix("the worker trains in ") for line in told if "(reason: " in line] == [
        "fp16 (reason: default)",
        "fp32 (reason: flag)",
        "fp16 (reason: default)",
        "fp32 (reason: operator)",
        "fp16 (reason: default)",
    ]
    assert "override: fp32 for drill until" in done.stdout
    assert "precision set for drill: a drill" in done.stdout
    assert "exit code 0" in done.stdout


def test_interrupted_it_leaves_nothing(root: Path, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, root / "deploy" / "drill" / "drill.py"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as drill:
        assert drill.stdout is not None
        while "A daemon starts" not in drill.stdout.readline():
            assert drill.poll() is None
        os.killpg(drill.pid, signal.SIGINT)  # as Ctrl-C does
        said = drill.stdout.read()
    assert (drill.returncode, "was interrupted" in said) == (130, True), said
    assert list(tmp_path.iterdir()) == []
