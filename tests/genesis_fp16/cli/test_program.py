"""The entry point, interrupted at any moment."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = [sys.executable, "-X", "importtime", "-c", "from genesis_fp16.cli import main; main()"]


@pytest.mark.parametrize("module", ["typer", "pydantic", "genesis_fp16.cli.precision"])
def test_an_interrupt_while_modules_load_is_told_without_a_traceback(
    folder: Path, module: str
) -> None:
    """The first of the modules that are imported before the command begins, and a later one."""
    with subprocess.Popen(
        [*PROGRAM, "config", "show"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        shown = ""
        for line in process.stderr:  # -X importtime names each module when it has been imported
            shown += line
            if line.rsplit("|")[-1].strip() == module:
                process.send_signal(signal.SIGINT)
                break
        shown += process.stderr.read()
    assert process.returncode == -signal.SIGINT
    assert "interrupted: the command had not begun" in shown
    assert "Traceback" not in shown
    assert "KeyboardInterrupt" not in shown


def test_damaged_metadata_of_any_distribution_stops_no_command(folder: Path) -> None:
    info = folder / "site" / "damaged-1.dist-info"
    info.mkdir(parents=True)
    (info / "entry_points.txt").write_bytes(b"\xf7")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM[-1], "config", "show"],
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(info.parent)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "ENABLE_FP16_TRAINING" in done.stdout
