"""``python -m benchmarks.start``: CPU seconds from a run's specification to its first step.

The agent is the example ``pendulum``, whose records are given: one round of its own collecting,
made beforehand. Cold and pre-warmed workers, as `LocalExecutor` starts them, take turns. All times
are CPU time of the worker's process, which other processes hardly change; ``submit`` is that of the
daemon. Medians of the repeats, with quartiles of the sums.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Literal

import torch

from benchmarks.measuring.machine import describe
from benchmarks.measuring.spread import Spread
from benchmarks.measuring.table import format_table
from genesis_fp16.domain.attempt import Attempt
from genesis_fp16.domain.run import Run, RunState
from genesis_fp16.executors import LocalExecutor
from genesis_fp16.runs.spec import make_spec
from genesis_fp16.settings import Settings
from infrastructure.events import PrecisionState

AGENT_FOLDER = Path(__file__).parents[2] / "examples" / "pendulum_agent"
ENTRY_POINT = "pendulum_agent:PendulumAgent"
PHASES = (
    *("interpreter", "torch", "library", "specification", "settings", "plugin", "records"),
    *("encoding", "network", "check_fp32_step", "first batch", "preflight", "trainer"),
    "first step",
)
_POLL_SECONDS = 0.01
Phases = Mapping[str, float]


class Starts:
    """Starts runs of the agent, one after the other, each until its first step.

    Args:
        home: Empty folder.
        precision: ``fp32``, or ``auto`` to measure the job first.
        transitions: Largest number of records.

    Attributes:
        first: The start that recorded; empty before.
    """

    def __init__(
        self, home: Path, precision: Literal["fp32", "auto"], transitions: int = 20000
    ) -> None:
        self._settings = Settings(home=home, device="cpu", budget_transitions=transitions)
        self.first: Phases = {}
        self._precision = PrecisionState(requested=precision, effective=precision, reason="default")
        program = Path(__file__).with_name("timed_worker.py")
        command = (sys.executable, "-P", str(program), str(AGENT_FOLDER))
        self._executor = LocalExecutor((*command, "worker"), (*command, "spare"))
        self._snapshot: bytes | None = None
        self._number = 0

    def close(self) -> None:
        """End the spare worker."""
        self._executor.keep_spare(False)

    def record(self) -> int:
        """Let the agent collect once; return the number of records."""
        self.first = self._start()
        (snapshot,) = self._settings.home.glob("runs/*/snapshot.json")
        self._snapshot = snapshot.read_bytes()
        replay = self._settings.home / "agents" / "pendulum" / "replay"
        return sum(len(path.read_bytes().splitlines()) for path in replay.glob("*.jsonl"))

    def cold(self) -> Phases:
        """Start a run in a new process."""
        self._executor.keep_spare(False)
        return self._start()

    def prewarmed(self) -> Phases:
        """Start a run in a process that waits for it."""
        self.warm_up()
        return self._start()

    def warm_up(self) -> int:
        """Start a spare worker and wait until it is ready; return its memory in KiB.

        The memory is its proportional set size: what it shares with others counts in parts.
        """
        self._executor.keep_spare(True)
        spare = self._executor.spare
        if spare is None:
            raise RuntimeError("no spare worker could be started")
        while not spare.is_ready():
            if spare.failure:
                raise RuntimeError(spare.failure)
            time.sleep(_POLL_SECONDS)
        rollup = Path(f"/proc/{spare.process.pid}/smaps_rollup").read_text()
        return int(next(line for line in rollup.splitlines() if line.startswith("Pss:")).split()[1])

    def _start(self) -> Phases:
        self._number += 1
        name = f"start-{self._number}"  # it decides which episodes are held out
        run = Run(
            id=name,
            agent="pendulum",
            number=self._number,
            trigger="manual",
            state=RunState.STARTING,
            seed=0,
            due_at=0.0,
            created_at=0.0,
            available_at=0.0,
        )
        attempt = Attempt(run_id=name, number=1, incarnation=name, started_at=0.0)
        spec = make_spec(self._settings, run, attempt, ENTRY_POINT, self._precision)
        spec.attempt_folder.mkdir(parents=True)
        if self._snapshot is not None:
            (spec.run_folder / "snapshot.json").write_bytes(self._snapshot)
        began = time.process_time()
        handle = self._executor.submit(spec)
        submitted = time.process_time() - began
        while (status := self._executor.poll(handle)) is None:
            time.sleep(_POLL_SECONDS)
        path = spec.attempt_folder / "phases.json"
        if not path.exists():
            traces = (spec.attempt_folder / "worker.log", spec.events_path)
            texts = [f"{trace}:\n{trace.read_text()}" for trace in traces if trace.exists()]
            raise RuntimeError("\n".join([f"no step was trained: {status}", *texts]))
        phases: dict[str, float] = json.loads(path.read_text())
        return {**phases, "submit": submitted}


def summarise(kinds: Mapping[str, Sequence[Phases]]) -> list[dict[str, str]]:
    """Rows of the table: a phase and its median for each kind of start; last the sums."""
    rows = []
    for phase in PHASES:
        row = {"phase": phase}
        for kind, starts in kinds.items():
            seconds = median(start.get(phase, 0.0) for start in starts)
            row[kind] = f"{seconds:.3f}" if any(phase in start for start in starts) else "-"
        rows.append(row)
    total, daemon = {"phase": "sum"}, {"phase": "submit"}
    for kind, starts in kinds.items():
        sums = Spread.of([sum(v for k, v in start.items() if k != "submit") for start in starts])
        total[kind] = f"{sums.median:.2f} ({sums.low:.2f}-{sums.high:.2f})"
        daemon[kind] = f"{median(start['submit'] for start in starts):.3f}"
    return [*rows, total, daemon]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7, help="starts of each kind")
    parser.add_argument("--precision", choices=("fp32", "auto"), default="fp32")
    options = parser.parse_args(arguments)
    machine = describe(torch.device("cpu"))
    print(f"{machine['device']}, torch {machine['torch']}")
    kinds: dict[str, list[Phases]] = {"cold": [], "pre-warmed": []}
    with tempfile.TemporaryDirectory() as folder:
        starts = Starts(Path(folder), options.precision)
        try:
            print(f"{starts.record()} records")
            for _ in range(options.repeats):
                kinds["cold"].append(starts.cold())
                kinds["pre-warmed"].append(starts.prewarmed())
            print(f"a spare worker holds {starts.warm_up() >> 10} MiB (PSS)")
        finally:
            starts.close()
    print(format_table(summarise(kinds), ("phase", *kinds)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
