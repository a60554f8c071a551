"""The files of an attempt on another machine: their names, and what is in them.

The daemon writes the order, the fence and the commands; the launcher on the other machine writes
the claim, the heartbeat and the result. Each file has one writer.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

FENCE_FILE = "incarnation"  # in the run's folder; the others are in the attempt's
ORDER_FILE = "job.json"
CLAIM_FILE = "claim.json"
COMMANDS_FILE = "commands.ndjson"
HEARTBEAT_FILE = "heartbeat"
RESULT_FILE = "result.json"
WORKER_LOG = "worker.log"
KILL_LINE = b'{"command":"kill"}'  # among the commands, for the launcher alone
MACHINE_FILE = "machine.json"  # in the folder of a check

LONGEST_FILE = 1 << 16  # bytes; a longer one is not ours


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")  # an older side reads a newer one's


class JobOrder(_Record):
    """What the daemon asks of the launcher; written before the engine is asked for a job.

    Attributes:
        job: Name of the job.
        engine: Name of the engine that was asked.
        incarnation: Of the attempt.
        worker: Command line of the worker without its last argument, the path of ``spec.json``;
            empty for the usual one.
        stop_seconds: Seconds in which the worker must checkpoint and stop before it is killed.
        run_seconds: Seconds after which the launcher stops the worker, if no daemon has done so.
        ordered_at: Unix time.
    """

    job: str
    engine: str
    incarnation: str
    worker: tuple[str, ...] = ()
    stop_seconds: float
    run_seconds: float
    ordered_at: float


class Claim(_Record):
    """Which launcher runs the attempt; the first one creates the file, any other one ends.

    Attributes:
        host, pid: Of the launcher.
        claimed_at: Unix time of that host.
    """

    incarnation: str
    host: str
    pid: int
    claimed_at: float


class Result(_Record):
    """How the worker ended, as its launcher saw it; its presence means that nothing runs any more.

    Attributes:
        exit_code: None if a signal ended the worker.
        signal: Number of the signal that ended it.
        error: Why the worker could not run; empty if it did.
        host: Where it ran.
        ended_at: Unix time of that host.
    """

    incarnation: str
    exit_code: int | None = None
    signal: int | None = None
    error: str = ""
    host: str
    ended_at: float


class MachineReport(_Record):
    """What a job found on a machine of the cluster.

    Attributes:
        time: Unix time by its clock.
        python, genesis_fp16, torch: Versions.
        gpus: CUDA devices that the job may use.
    """

    host: str
    time: float
    python: str
    genesis_fp16: str
    torch: str
    gpus: int
