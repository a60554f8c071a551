"""The end of a daemon's attempts: asked to checkpoint and stop, waited for, and then killed."""

from __future__ import annotations

import time

import structlog

from genesis_fp16.daemon.store_trouble import StoreTrouble
from genesis_fp16.runs.dispatcher import Dispatcher
from genesis_fp16.system.signals import Signals

DRAIN_GRACE_SECONDS = 0.9  # beyond the stop deadline, for the kernel to end what was killed
LOOK_SECONDS = 0.05

log = structlog.get_logger()


def drain(dispatcher: Dispatcher, signals: Signals, stop_seconds: float) -> None:
    """Stop all attempts and wait for their end; kill them at the deadline or a further signal.

    Args:
        dispatcher: Whose attempts.
        signals: A stop more than there was makes it impatient.
        stop_seconds: What a worker has to checkpoint and stop.
    """
    first, begun, trouble = signals.stops, time.monotonic(), StoreTrouble()
    if dispatcher.busy:
        log.info("draining", attempts=dispatcher.busy, deadline_seconds=stop_seconds)
    dispatcher.stop_all(begun)
    while dispatcher.busy and time.monotonic() - begun < stop_seconds + DRAIN_GRACE_SECONDS:
        if signals.stops > first:
            dispatcher.kill_all()
        dispatcher.follow(time.monotonic())
        if not (trouble.text and dispatcher.alive):  # a failing store must not delay the kill
            with trouble.tolerated():
                dispatcher.follow_and_record(time.monotonic())
        if trouble.text and not dispatcher.alive:
            log.warning("runs_left_to_the_next_start", runs=dispatcher.busy)
            break
        time.sleep(LOOK_SECONDS)
    dispatcher.kill_all()
