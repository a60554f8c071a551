"""The entry point, interrupted at any moment."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

CALL = "from genesis_fp16.cli import main; main()"
# Interrupts itself when a module is about to be imported.
INTERRUPTED = f"""
import os, signal, sys

class Interrupt:
    def find_spec(self, name, *_):
        if name == {{module!r}}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
{CALL}
"""


def run(code: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """``config show`` by a new interpreter, in *folder*."""
    return subprocess.run(
        [sys.executable, "-c", code, "config", "show"],
        check=False,
        cwd=folder,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("module", ["typer", "pydantic", "genesis_fp16.cli.precision"])
def test_an_interrupt_while_modules_load_is_told_without_a_traceback(
    folder: Path, module: str
) -> None:
    """The first of the modules that are imported before the command begins, and a later one."""
    done = run(INTERRUPTED.format(module=module), folder)
    assert done.returncode == -signal.SIGINT
    assert done.stderr == "interrupted: the command had not begun\n"
    assert done.stdout == ""


def test_damaged_metadata_of_any_distribution_stops_no_command(folder: Path) -> None:
    info = folder / "site" / "damaged-1.dist-info"
    info.mkdir(parents=True)
    (info / "entry_points.txt").write_bytes(b"\xf7")
    done = run(CALL, folder, PYTHONPATH=str(info.parent))
    assert done.returncode == 0, done.stderr
    assert "ENABLE_FP16_TRAINING" in done.stdout
