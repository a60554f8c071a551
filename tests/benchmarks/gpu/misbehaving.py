"""Sections that a run must survive: programs for `test_supervise.py`, not tests."""

import os
import signal
import subprocess
import sys

from benchmarks.gpu.section import Task


def run(task: Task) -> None:
    """Decide one claim, leave a process behind in a session of its own, and crash."""
    task.findings.decide("fleet-bits", holds=True, measured="before the crash", ratio=2.0)
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    child = subprocess.Popen(sleeper, start_new_session=True)
    (task.folder / "left-behind").write_text(str(child.pid))
    os.kill(os.getpid(), signal.SIGSEGV)
