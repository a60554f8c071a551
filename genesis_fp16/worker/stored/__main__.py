"""Entry point: an attempt, or a check, on a machine that shares an object store with the daemon."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path

from genesis_fp16.domain.remote_attempt import Claim
from genesis_fp16.domain.stored_attempt import CHOSEN, ORDER, STARTS, StoredOrder
from genesis_fp16.system.object_store import ObjectStore
from genesis_fp16.worker.stored.attempt import POLL_SECONDS, StoredAttempt
from genesis_fp16.worker.stored.patience import retried, say


def main() -> None:
    """Run the job named by the second argument from the store at the first one, or probe.

    ``--probe URL OBJECT`` reports what this machine has, to the object of that name.
    """
    if sys.argv[1] == "--probe":
        from genesis_fp16.worker.machine_report import make_report

        report = make_report().model_dump_json().encode()
        ObjectStore(sys.argv[2]).write(sys.argv[3], report)
        return
    store, job = ObjectStore(sys.argv[1]), sys.argv[2]
    content = retried(lambda: store.read(f"{job}/{ORDER}"))
    if content is None:
        say("another attempt has taken this run: nothing is started")
        return
    order, start = StoredOrder.model_validate_json(content), secrets.token_hex(8)
    if not is_chosen(store, job, start, order):
        return
    scratch = Path(tempfile.mkdtemp(prefix="genesis-")).resolve()
    try:
        StoredAttempt(store, job, start, order, scratch).run()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def is_chosen(store: ObjectStore, job: str, start: str, order: StoredOrder) -> bool:
    """Announce this start; whether the daemon lets it go on."""
    claim = Claim(
        incarnation=order.order.incarnation,
        host=socket.gethostname(),
        pid=os.getpid(),
        claimed_at=time.time(),
    )
    name = f"{job}/{STARTS}/{start}"
    retried(lambda: store.write(name, claim.model_dump_json().encode()))
    give_up = time.monotonic() + order.order.run_seconds
    while (chosen := retried(lambda: store.read(f"{job}/{CHOSEN}"))) is None:
        if retried(lambda: store.read(f"{job}/{ORDER}")) is None:
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
