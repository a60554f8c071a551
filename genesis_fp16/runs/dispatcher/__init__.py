"""Starts queued runs in free slots, follows their attempts and ends them.

`dispatcher` is the round; the other modules each do one step of it for one attempt.
"""

from genesis_fp16.runs.dispatcher.dispatcher import Dispatcher
from genesis_fp16.runs.dispatcher.reading import READ_SECONDS
from genesis_fp16.runs.dispatcher.recording import SAVE_BYTES, SAVE_INTERVAL_SECONDS

__all__ = ["READ_SECONDS", "SAVE_BYTES", "SAVE_INTERVAL_SECONDS", "Dispatcher"]
