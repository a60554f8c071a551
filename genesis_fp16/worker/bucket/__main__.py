"""Entry point: an attempt, or a check, on a machine that shares a bucket with the daemon."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path

from genesis_fp16.domain.bucket_attempt import CHOSEN, ORDER, STARTS, BucketOrder
from genesis_fp16.domain.remote_attempt import Claim
from genesis_fp16.system.bucket import Bucket
from genesis_fp16.worker.bucket.attempt import POLL_SECONDS, BucketAttempt
from genesis_fp16.worker.bucket.patience import retried, say


def main() -> None:
    """Run the job named by the second argument from the bucket at the first one, or probe.

    ``--probe URL OBJECT`` reports what this machine has, to the object of that name.
    """
    if sys.argv[1] == "--probe":
        from genesis_fp16.worker.machine_report import make_report

        report = make_report().model_dump_json().encode()
        Bucket(sys.argv[2]).write(sys.argv[3], report)
        return
    bucket, job = Bucket(sys.argv[1]), sys.argv[2]
    content = retried(lambda: bucket.read(f"{job}/{ORDER}"))
    if content is None:
        say("another attempt has taken this run: nothing is started")
        return
    order, start = BucketOrder.model_validate_json(content), secrets.token_hex(8)
    if not is_chosen(bucket, job, start, order):
        return
    scratch = Path(tempfile.mkdtemp(prefix="genesis-")).resolve()
    try:
        BucketAttempt(bucket, job, start, order, scratch).run()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def is_chosen(bucket: Bucket, job: str, start: str, order: BucketOrder) -> bool:
    """Announce this start; whether the daemon lets it go on."""
    claim = Claim(
        incarnation=order.order.incarnation,
        host=socket.gethostname(),
        pid=os.getpid(),
        claimed_at=time.time(),
    )
    name = f"{job}/{STARTS}/{start}"
    retried(lambda: bucket.write(name, claim.model_dump_json().encode()))
    give_up = time.monotonic() + order.order.run_seconds
    while (chosen := retried(lambda: bucket.read(f"{job}/{CHOSEN}"))) is None:
        if retried(lambda: bucket.read(f"{job}/{ORDER}")) is None:
            say("another attempt has taken this run: nothing is started")
            return False
        if time.monotonic() >= give_up:
            say("no daemon has let this job begin within the run's deadline: nothing is started")
            return False
        time.sleep(POLL_SECONDS)
    if chosen.decode() != start:
        say("this attempt has been started before: nothing is started")
        return False
    return True


if __name__ == "__main__":
    main()
