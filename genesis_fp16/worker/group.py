"""One attempt on several ranks of this machine: torchrun starts them, and one outcome is reported.

``python -m genesis_fp16.worker.group SPEC`` takes the place of ``genesis_fp16.worker SPEC``: the
same event file, the same exit codes, and the same stdin, which rank 0 inherits and reads. It
restarts nothing: when a rank fails, all end, and the daemon starts the next attempt.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.run import main as torchrun

from genesis_fp16.domain.run import EXIT_CODES
from genesis_fp16.domain.run_spec import RunSpec
from genesis_fp16.system.processes import become_subreaper
from genesis_fp16.worker.exit_report import describe_failure, exit_process, print_traceback
from infrastructure.events import EventWriter, read_events
from infrastructure.events.event import Finished


def main() -> None:
    """Run the attempt that the file named by the only argument describes."""
    faulthandler.enable()
    become_subreaper()
    path = Path(sys.argv[1])
    spec = RunSpec.model_validate_json(path.read_bytes())
    try:
        failures = _run_ranks(path, spec)
        finished = combine_reports(spec, failures, _read_exit_reports(spec))
    except Exception as error:  # an error of torchrun itself: the attempt has failed
        print_traceback(error)
        message = describe_failure(error, spec, "starting the ranks")
        finished = Finished(outcome="failed", error=message)
    code = EXIT_CODES[finished.outcome]
    with EventWriter(spec.events_path) as emit:
        emit(finished)
        if not emit.flush():  # a full disk: without its last event the attempt is not done
            code = code or os.EX_TEMPFAIL
    exit_process(code)


def _run_ranks(path: Path, spec: RunSpec) -> Mapping[int, ProcessFailure]:
    """Let torchrun start the ranks and wait for them; return the failures by rank."""
    try:
        torchrun(
            [
                "--standalone",
                f"--nproc-per-node={spec.processes_per_run}",
                "--max-restarts=0",
                f"--log-dir={os.devnull}",  # otherwise each attempt leaves a folder in /tmp
                "--no-python",
                *(sys.executable, "-P", "-m", "genesis_fp16.worker"),
                *(str(path), str(os.getpid())),
            ]
        )
    except ChildFailedError as error:
        return error.failures
    except SignalException:  # torchrun has passed it on to the ranks, which have checkpointed
        return {}
    return {}


def _read_exit_reports(spec: RunSpec) -> dict[int, Finished]:
    """The exit report of each rank that could write one."""
    return {
        rank: event
        for rank in range(spec.processes_per_run)
        for event in read_events(spec.exit_report_path(rank))
        if isinstance(event, Finished)
    }


def combine_reports(
    spec: RunSpec, failures: Mapping[int, ProcessFailure], reports: Mapping[int, Finished]
) -> Finished:
    """Report the attempt as rank 0 did, or, after failures, as the rank that failed first.

    The *failures* that torchrun has seen and the exit *reports* are by rank.
    """
    if failures:
        failed = {
            rank: report
            for rank, report in reports.items()
            if report.outcome in ("disk_full", "failed", "misconfigured")
        }
        first = min(failures, key=lambda rank: _failure_order(failures[rank], failed.get(rank)))
        return failed.get(first) or _report_of_killed_rank(spec, first, failures[first])
    log = spec.attempt_folder / "worker.log"
    missing = f"{spec.agent} failed: rank 0 ended without an exit report; see {log}"
    return reports.get(0, Finished(outcome="failed", error=missing))


def _failure_order(failure: ProcessFailure, report: Finished | None) -> tuple[bool, float]:
    """Sort key that puts the rank that failed first before those that failed because of it.

    torchrun notices a killed rank up to a second late and records whole seconds. SIGTERM sorts
    last: torchrun itself sends it to the other ranks, and one that has just started dies of it.
    """
    if report is not None:
        return False, report.time
    return failure.exitcode == -signal.SIGTERM, failure.timestamp - 1.0


def _report_of_killed_rank(spec: RunSpec, rank: int, failure: ProcessFailure) -> Finished:
    if failure.exitcode == os.EX_TEMPFAIL:
        error = f"the disk is full: rank {rank} could not report its end in {spec.attempt_folder}"
        return Finished(outcome="disk_full", error=error)
    if failure.exitcode < 0:
        ending = f"was killed by {signal.Signals(-failure.exitcode).name}"
    else:
        ending = f"ended with exit code {failure.exitcode} and without an exit report"
    error = (
        f"{spec.agent} failed: rank {rank} of {spec.processes_per_run} {ending}; if nobody killed "
        f"it, memory may have run out: see the kernel's log and {spec.attempt_folder}/worker.log"
    )
    return Finished(outcome="failed", error=error)


if __name__ == "__main__":
    main()
