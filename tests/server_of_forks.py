"""Importing this makes a process the one that others are forked from: see `tests.preloaded`.

The collector would walk over what is imported again and again, in it and in all that it forks,
which then have pages of their own where they had shared them.
"""

import faulthandler
import sys
import threading

from tests.preloaded import preload

preload(of_policies=True)
# The process may be a fork of pytest's, which has replaced these.
faulthandler.disable()
sys.excepthook, sys.unraisablehook = sys.__excepthook__, sys.__unraisablehook__
threading.excepthook = threading.__excepthook__
sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
