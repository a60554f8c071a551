"""One attempt on several ranks of this machine: torchrun, and one word for all of them.

``python -m genesis_fp16.worker.group SPEC`` stands in the place of ``genesis_fp16.worker SPEC``:
the same event file, the same stdin, which rank 0 inherits and reads, the same exit codes. It
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
from genesis_fp16.system.processes import keep_orphans
from genesis_fp16.worker.exit_report import leave, print_traceback, why_failed
from infrastructure.events import EventTail, EventWriter
from infrastructure.events.event import Finished

_FAILED = ("failed", "misconfigured")


def main() -> None:
    """Run the attempt that the file named by the only argument describes."""
    faulthandler.enable()
    keep_orphans()
    path = Path(sys.argv[1])
    spec = RunSpec.model_validate_json(path.read_bytes())
    try:
        failures = _run(path, spec)
        finished = judge(spec, failures, _last_words(spec))
    except Exception as error:  # whatever torchrun raises, the attempt has failed
        print_traceback()
        finished = Finished(outcome="failed", error=why_failed(error, spec, "starting the ranks"))
    code = EXIT_CODES[finished.outcome]
    try:
        with EventWriter(spec.events_path) as emit:
            emit(finished)
    except OSError:  # a full disk: without its last event the attempt does not count as done
        print_traceback()
        code = code or 1
    leave(code)


def _run(path: Path, spec: RunSpec) -> Mapping[int, ProcessFailure]:
    """Let torchrun start the ranks and wait for them; the failed ones, by rank."""
    try:
        torchrun(
            [
                "--standalone",
                f"--nproc-per-node={spec.processes_per_run}",
                "--max-restarts=0",
                f"--log-dir={os.devnull}",  # else each attempt leaves a folder in /tmp
                "--no-python",
                *(sys.executable, "-P", "-m", "genesis_fp16.worker"),
                *(str(path), str(os.getpid())),
            ]
        )
    except ChildFailedError as error:
        return error.failures
    except SignalException:  # passed on to the ranks, which have checkpointed if they could
        return {}
    return {}


def _last_words(spec: RunSpec) -> dict[int, Finished]:
    """How each rank says it ended; nothing of one that could not speak."""
    return {
        rank: event
        for rank in range(spec.processes_per_run)
        for event in EventTail(spec.last_words_path(rank)).read()
        if isinstance(event, Finished)
    }


def judge(
    spec: RunSpec, failures: Mapping[int, ProcessFailure], words: Mapping[int, Finished]
) -> Finished:
    """How the attempt ended: as rank 0 says, or as the rank did that failed first.

    Args:
        spec: Of the attempt.
        failures: What torchrun saw fail, by rank.
        words: How the ranks say they ended.
    """
    if failures:
        failed = {rank: word for rank, word in words.items() if word.outcome in _FAILED}
        first = min(failures, key=lambda rank: _order(failures[rank], failed.get(rank)))
        return failed.get(first) or _silent_death(spec, first, failures[first])
    log = spec.attempt_folder / "worker.log"
    silence = f"{spec.agent} failed: rank 0 was ended before it could say how; see {log}"
    return words.get(0, Finished(outcome="failed", error=silence))


def _order(failure: ProcessFailure, word: Finished | None) -> tuple[bool, float]:
    """When a rank failed, before those that failed because of it.

    A killed one is seen a moment later, and only the second is noted. SIGTERM comes last: with
    that torchrun itself ends the others, and one that has just started does not hear it yet.
    """
    if word is not None:
        return False, word.time
    return failure.exitcode == -signal.SIGTERM, failure.timestamp - 1.0


def _silent_death(spec: RunSpec, rank: int, failure: ProcessFailure) -> Finished:
    if failure.exitcode < 0:
        how = f"was ended by {signal.Signals(-failure.exitcode).name}"
    else:
        how = f"left with exit code {failure.exitcode} and no word"
    error = (
        f"{spec.agent} failed: rank {rank} of {spec.processes_per_run} {how}; where nobody killed "
        f"it, memory may have run out: see the kernel's log and {spec.attempt_folder}/worker.log"
    )
    return Finished(outcome="failed", error=error)


if __name__ == "__main__":
    main()
