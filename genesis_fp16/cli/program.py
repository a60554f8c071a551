"""Entry point of the program: imports nothing heavy before Ctrl-C can end it quietly."""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Run the program; Ctrl-C never shows a traceback, also while modules are loading."""
    interrupted = signal.getsignal(signal.SIGINT)
    quietly = interrupted is signal.default_int_handler  # a shell may have it ignored
    if quietly:
        signal.signal(signal.SIGINT, _end_before_command)
    # Otherwise pydantic imports what any distribution registers for it, and no command starts while
    # the metadata of one is damaged.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from genesis_fp16.cli import app

    if quietly:
        signal.signal(signal.SIGINT, interrupted)
    try:
        app.main()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    finally:
        if quietly:  # nothing is left to clean up
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _end_before_command(*_: object) -> None:
    """Say that nothing was done, and end as a program does that SIGINT ends."""
    os.write(2, b"interrupted: the command had not begun\n")
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
