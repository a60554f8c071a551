"""One round of the fifteen business agents: a cold worker each, one process, one fleet."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.agents.businesses import BUSINESSES
from benchmarks.agents.subjects import RECORDS, preset_subjects
from genesis_fp16.domain.run_spec import RunSpec
from genesis_fp16.executors.local import WORKER_COMMAND
from genesis_fp16.runs.spec import spec_of_settings
from genesis_fp16.settings import Settings
from genesis_fp16.settings.source import child_environment
from infrastructure.events import PrecisionState
from infrastructure.events.precision_state import PrecisionName

Way = Literal["cold workers", "shared start-up", "shared start-up and stacking"]
WAYS: tuple[Way, ...] = ("cold workers", "shared start-up", "shared start-up and stacking")
_ENTRY_POINT = "agents.replay_agent:ReplayAgent"


class RoundFailedError(RuntimeError):
    """A process of a round failed; the message names its log."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """What one round took.

    Attributes:
        cpu_seconds: CPU time of all its processes, from their start to their end.
        peak_mebibytes: Largest resident memory of any one process.
        published: Number of agents that published a model.
        weights: SHA-256 of the file of each agent's best epoch.
    """

    cpu_seconds: float
    peak_mebibytes: float
    published: int
    weights: dict[str, str]


def prepare_home(home: Path, records: int, steps: int | None, agents: int) -> list[str]:
    """Enable the preset in *home*, record *records* for each agent, return the agents' names.

    The folder of records is emptied afterwards, so that a run collects nothing.

    Args:
        steps: Bound of the optimizer steps, written into the definitions; None for the preset's.
        agents: Number of agents that take part.
    """
    preset_subjects(home, records, seed=0)
    for path in (home / RECORDS).iterdir():
        path.unlink()
    if steps is not None:
        for path in (home / "agents.d").iterdir():
            path.write_text(f"{path.read_text()}\n[training]\nsteps = {steps}\n")
    return [business.name for business in BUSINESSES[:agents]]


def run_round(way: Way, home: Path, names: Sequence[str], precision: PrecisionName) -> Round:
    """Run one round on a copy of *home*.

    Raises:
        RoundFailedError: A process failed.
    """
    copy = home.with_name(f"{home.name}-{WAYS.index(way)}")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(home, copy)
    paths = [_write_spec(copy, name, precision) for name in names]
    if way == "cold workers":
        costs = [_run([*WORKER_COMMAND, str(path)], path.with_name("worker.log")) for path in paths]
    else:
        together = ["--together"] if way == WAYS[2] else []
        command = [sys.executable, "-m", "benchmarks.agents.host", *map(str, paths), *together]
        costs = [_run(command, copy / "host.log")]
    done = Round(
        cpu_seconds=sum(seconds for seconds, _ in costs),
        peak_mebibytes=max(mebibytes for _, mebibytes in costs),
        published=sum(_has_published(copy, name) for name in names),
        weights={name: _best_weights(copy, name) for name in names},
    )
    shutil.rmtree(copy)
    return done


def _write_spec(home: Path, name: str, precision: PrecisionName) -> Path:
    """Write the specification that a daemon with default settings gives the agent's worker."""
    run_folder = home / "runs" / name
    attempt_folder = run_folder / "attempts" / "1"
    attempt_folder.mkdir(parents=True)
    spec = RunSpec(
        run_id=name,
        attempt=1,
        incarnation=name,
        agent=name,
        entry_point=_ENTRY_POINT,
        run_folder=run_folder,
        attempt_folder=attempt_folder,
        seed=1,
        precision=PrecisionState(requested=precision, effective=precision, reason="operator"),
        **spec_of_settings(Settings(home=home, cpu_half=True, worker_threads=1), name),
    )
    path = attempt_folder / "spec.json"
    path.write_text(spec.model_dump_json())
    return path


def _run(command: Sequence[str], log: Path) -> tuple[float, float]:
    """CPU seconds and peak resident MiB of *command*, with what it prints in *log*."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # its end would tell a worker that the daemon is gone
            stdout=file,
            stderr=subprocess.STDOUT,
            env=child_environment({"OMP_NUM_THREADS": "1"}),
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.stdin is not None:
            process.stdin.close()
    if process.returncode:
        raise RoundFailedError(f"{' '.join(command[:4])} failed: see {log}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def _has_published(home: Path, name: str) -> bool:
    events = home / "runs" / name / "attempts" / "1" / "events.ndjson"
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    return any(each["kind"] == "published" and each["published"] for each in lines)


def _best_weights(home: Path, name: str) -> str:
    path = home / "runs" / name / "best-epoch.pt"
    return hashlib.sha256(path.read_bytes()).hexdigest()
