"""Importing this makes a process the one that others are forked from: see `tests.preloaded`.

The collector would walk over what is imported again and again, in it and in all that it forks,
which then have pages of their own where they had shared them.
"""

import importlib
from contextlib import suppress

from genesis_fp16.worker.collector_pause import collector_paused
from tests.preloaded import OF_POLICIES, preload, use_huge_pages

with collector_paused():
    preload()
    for module in OF_POLICIES:
        with suppress(ImportError):  # not installed
            importlib.import_module(module)
use_huge_pages()
