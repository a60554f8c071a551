"""Run a section in a process of its own; its crash or its hang costs this section only."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.gpu.claims import ROOT
from benchmarks.gpu.findings import Finding, read_findings
from benchmarks.gpu.plan import Section
from benchmarks.gpu.section import FINDINGS
from genesis_fp16.system.processes import kill, living_descendants

_LOG_LINES = 30
_KILL_SECONDS = 5.0  # a process that waits for a driver may outlive SIGKILL


@dataclass(frozen=True, kw_only=True, slots=True)
class SectionEnd:
    """How a section ended, and what it left.

    Attributes:
        section: The section.
        problem: Crash, timeout or error; empty if it ended normally.
        seconds: Time that it took.
        findings: What it decided before its end.
        tables: Text for the page.
        log: Last lines of its output.
    """

    section: Section
    problem: str = ""
    seconds: float = 0.0
    findings: Sequence[Finding] = ()
    tables: Sequence[str] = ()
    log: str = field(default="", repr=False)


def run_section(
    section: Section, folder: Path, *, seconds: float, device: str, quick: bool
) -> SectionEnd:
    """Run *section* for at most so many *seconds*; afterwards none of its processes is alive."""
    if seconds <= 0:
        return SectionEnd(section=section, problem="not started: the time was over")
    folder.mkdir(parents=True)
    before = set(living_descendants())
    command = [sys.executable, "-u", "-m", "benchmarks.gpu.section", section.name, section.module]
    command += [str(folder), "--device", device, *(["--quick"] if quick else [])]
    begun = time.monotonic()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,  # where ``benchmarks`` is
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            took = time.monotonic() - begun
            _end(process, before)
    findings, tables = read_findings(folder / FINDINGS)
    return SectionEnd(
        section=section,
        problem=_problem(code, seconds),
        seconds=took,
        findings=findings,
        tables=tables,
        log="\n".join((folder / "log").read_text(errors="replace").splitlines()[-_LOG_LINES:]),
    )


def _end(process: subprocess.Popen[bytes], before: set[psutil.Process]) -> None:
    """Kill what is left of a section, also what it has abandoned, where this is a subreaper."""
    left = [each for each in living_descendants() if each not in before]
    kill(left)
    psutil.wait_procs(left, timeout=_KILL_SECONDS)
    try:
        process.wait(0.1)
    except subprocess.TimeoutExpired:
        print(f"process {process.pid} does not end: its driver hangs", flush=True)


def _problem(code: int | None, seconds: float) -> str:
    if code is None:
        return f"killed after its {seconds:.0f} s"
    if code < 0:
        return f"crashed by {signal.Signals(-code).name}"
    return f"failed with exit code {code}" if code else ""
