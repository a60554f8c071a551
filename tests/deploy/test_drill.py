"""The drill that an operator rehearses works."""

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import crowding

pytestmark = pytest.mark.process


@pytest.mark.usefixtures("forked")
def test_the_drill_succeeds_and_shows_who_did_what(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = root / "deploy" / "drill" / "drill.py"
    spec = importlib.util.spec_from_file_location("drill", path)
    assert spec is not None
    assert spec.loader is not None
    drill = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(drill)
    # Its deadlines are for a machine that does nothing else, nor begins to meanwhile.
    monkeypatch.setattr(drill, "DEADLINE_SECONDS", 3 * drill.DEADLINE_SECONDS * crowding())
    monkeypatch.setattr(drill, "START_SECONDS", drill.START_SECONDS * crowding())
    code = drill.main()
    shown = capsys.readouterr().out
    assert code == 0, shown
    told = [line.split(" after ")[0].strip() for line in shown.splitlines()]
    assert [line.removeprefix("the worker trains in ") for line in told if "(reason: " in line] == [
        "fp16 (reason: default)",
        "fp32 (reason: flag)",
        "fp16 (reason: default)",
        "fp32 (reason: operator)",
        "fp16 (reason: default)",
    ]
    assert "override: fp32 for drill until" in shown
    assert "precision set for drill: a drill" in shown
    assert "exit code 0" in shown


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
