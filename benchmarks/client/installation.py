"""Size of the client's wheel, and what its import takes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "clients" / "python"
_IMPORT = """
import sys, time
wall, cpu = time.perf_counter(), time.process_time()
import genesis_client
print(time.perf_counter() - wall, time.process_time() - cpu)
"""


def wheel_bytes(folder: Path) -> int:
    """Build the wheel in the empty *folder* and return its size."""
    source = folder / "source"
    shutil.copytree(FOLDER, source, ignore=shutil.ignore_patterns("build", "*.egg-info"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--wheel-dir", str(folder), str(source)]
    subprocess.run(command, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel.stat().st_size


def import_seconds() -> tuple[float, float]:
    """Wall and CPU time that the import takes in a new interpreter that has imported nothing."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", _IMPORT],
        env={"PYTHONPATH": str(FOLDER), "PATH": os.defpath},
        capture_output=True,
        text=True,
        check=True,
    )
    wall, cpu = map(float, done.stdout.split())
    return wall, cpu
