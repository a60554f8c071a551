"""Signals are recorded while the recorder is entered, and handled as before afterwards."""

import os
import signal

from genesis_fp16.system.signals import Signals


def test_signals_are_recorded_until_the_end_of_the_block() -> None:
    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    with Signals() as signals:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(os.getpid(), number)
        assert (signals.stop_count, signals.reload_requested) == (2, True)
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)] == before
